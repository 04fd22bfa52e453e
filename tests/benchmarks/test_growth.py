"""Growth: tables of a wanted size, claims timed at each size, and crowds."""

from __future__ import annotations

import click
import pytest
from sqlalchemy import URL

from benchmarks.growth import main
from benchmarks.harness.databases import Database

TINY = {
    "done": (30, 1_500),
    "backlog": (20, 40),
    "batch": 5,
    "claims": 2,
    "drained": 100,
    "workers": 1,
    "rounds": 1,
    "produced": 20,
    "producers": 1,
    "consumers": 2,
    "crowd_batches": (10,),
}


@pytest.mark.usefixtures("forked_hosts")
@pytest.mark.by_turns("sqlite", "mysql")
def test_all_of_growth_is_measured(fresh_database: URL, db_alias: str) -> None:
    database = Database(db_alias, fresh_database.render_as_string(hide_password=False))

    found = main.measure(database, **TINY)

    assert len(found["done"]) == len(found["backlog"]) == 2 * 2 * 2  # sizes, snapshots, kinds
    assert [len(course["rates"]) for course in found["courses"]] == [10, 10]
    assert {crowd["way"]: crowd["jobs"] for crowd in found["crowds"]} == {"verbs": 20, "Worker": 20}
    assert all(crowd["surfaced"] == {} for crowd in found["crowds"] if crowd["way"] == "Worker")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"drained": 40}, "at least 50 jobs"),
        ({"backlog": (9,)}, "at least 10 jobs"),
        ({"done": (2, 1)}, "from small to large"),
    ],
)
def test_sizes_that_cannot_be_measured_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(click.UsageError, match=message):
        main.measure(Database("sqlite", "sqlite://"), **{**TINY, **wrong})
