"""A bench for drivers, and a run of each mutant only where it can be shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine

from sa_jobqueue.model.mapping import mapping_of
from sa_jobqueue.sessions.built_once import _KEPT
from tests.contract.serial.keyed import KeyedBase, Mail
from tests.evidence.bench import Bench
from tests.models import Base, Email, Task
from tests.support import make_engine, with_empty_tables

CLASSES = (Email, Task, Mail)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    impossible = [item for item in items if not _possible(item)]
    if impossible:
        items[:] = [item for item in items if _possible(item)]
        config.hook.pytest_deselected(items=impossible)


def _possible(item: pytest.Item) -> bool:
    params = getattr(getattr(item, "callspec", None), "params", {})
    mutant, alias = params.get("mutant"), params.get("db_alias")
    return mutant is None or alias is None or alias in mutant.databases


@pytest.fixture(scope="module")
def kept_engine(db_url: URL, db_alias: str) -> Iterator[Engine]:
    options: dict[str, Any] = {} if db_alias == "sqlite" else {"isolation_level": "READ COMMITTED"}
    engine = make_engine(db_url, **options)
    yield engine
    engine.dispose()


@pytest.fixture
def bench(kept_engine: Engine, tmp_path: Path) -> Iterator[Bench]:
    """A bench on empty tables; statements that a mutant built are forgotten."""
    for base in (Base, KeyedBase):
        with_empty_tables(kept_engine, base.metadata)
    _forget_statements()
    yield Bench(kept_engine, tmp_path / "history.jsonl")
    _forget_statements()


def _forget_statements() -> None:
    for entity in CLASSES:
        vars(mapping_of(entity)).pop(_KEPT, None)
