"""Which databases a test of the suite runs on."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.plugin import databases_of
from tests.servers import DATABASES


def item_of(
    name: str,
    alias: str,
    *,
    only_on: Sequence[str] = (),
    turns: Sequence[str] = (),
    by_turns: Sequence[str] = (),
    load: bool = False,
    on_two: str = "",
    full: bool = False,
) -> Any:
    """Stand in for a test that pytest has collected."""
    given = {"only_on": only_on, "by_turns": turns, "load": ["load"] if load else ()}
    markers = {mark: SimpleNamespace(args=tuple(args)) for mark, args in given.items() if args}
    options = {"by_turns": by_turns, "on_two": [on_two] if on_two else [], "full": full}
    return SimpleNamespace(
        nodeid=f"tests/contract/test_claims.py::{name}[auto-{alias}]",
        originalname=name,
        callspec=SimpleNamespace(id=f"auto-{alias}", params={"db_alias": alias}),
        config=SimpleNamespace(getoption=options.__getitem__),
        get_closest_marker=markers.get,
    )


def run_on(name: str, **options: Any) -> list[str]:
    """Name the databases for which a test is kept."""
    return [
        alias
        for alias in DATABASES
        if alias in databases_of(item_of(name, alias, **options), alias)
    ]


def test_by_turns_a_test_runs_on_exactly_one_of_two_databases() -> None:
    names = [f"test_on_mysql_{number}" for number in range(20)]

    kept = [run_on(name, by_turns=["mysql,mariadb"]) for name in names]

    assert {tuple(databases) for databases in kept} == {
        tuple(name for name in DATABASES if name != left_out) for left_out in ("mysql", "mariadb")
    }


def test_a_test_under_load_and_the_full_run_take_no_turns() -> None:
    assert run_on("test_a", by_turns=["mysql,mariadb"], load=True) == list(DATABASES)
    assert run_on("test_a", by_turns=["mysql,mariadb"], full=True) == list(DATABASES)


def test_a_test_with_the_marker_runs_on_exactly_one_of_its_databases_and_on_all_in_full() -> None:
    assert len(run_on("test_a", turns=DATABASES)) == 1
    assert run_on("test_a", turns=DATABASES, full=True) == list(DATABASES)


def test_a_marker_that_names_no_database_ends_the_run() -> None:
    with pytest.raises(pytest.UsageError, match="oracle"):
        run_on("test_a", only_on=("oracle",))
