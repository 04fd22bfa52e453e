"""Growth: tables of a wanted size, claims timed at each size, and crowds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import pytest
from sqlalchemy import URL, Engine, func, select

from benchmarks.adapters.model import Job, make_engine
from benchmarks.growth import main, tables
from benchmarks.growth.courses import rates_of
from benchmarks.growth.sizes import Size
from benchmarks.growth.tables import Growing, Small
from benchmarks.harness.databases import Database
from benchmarks.harness.timing import latency

from .growths import crowd, growth, timed

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


@pytest.fixture
def engine(fresh_database: URL) -> Iterator[Engine]:
    """Give an engine on a new and empty database."""
    made = make_engine(fresh_database.render_as_string(hide_password=False))
    yield made
    made.dispose()


def created(engine: Engine, entity: type[Any] = Job) -> Growing:
    """Make an empty table."""
    table = Growing(engine, entity)
    table.create()
    return table


def sizes(engine: Engine) -> dict[str, int]:
    """Count jobs by status."""
    by_status = select(Job.status, func.count()).group_by(Job.status)
    with engine.connect() as connection:
        return {row.status: row[1] for row in connection.execute(by_status)}


def test_a_table_grows_to_the_sizes_that_are_wanted(engine: Engine) -> None:
    table = created(engine)

    for size in (Size(30, 20), Size(2_500, 10)):
        table.grow(size.done, size.backlog)

        assert sizes(engine) == {"done": size.done, "unclaimed": size.backlog}


def test_done_rows_look_as_workers_leave_them(engine: Engine) -> None:
    table = created(engine)

    table.grow(30, 0)

    with engine.connect() as connection:
        rows = connection.execute(select(Job.id, Job.owner, Job.owner_date)).all()
    assert len({row.owner for row in rows}) == 8
    assert [row.id for row in sorted(rows, key=lambda row: row.owner_date)] == list(range(1, 31))


def test_a_table_that_is_measured_keeps_its_size(engine: Engine) -> None:
    table = created(engine)
    table.grow(30, 20)

    table.put_back([1, 2, 3])

    assert sizes(engine) == {"done": 27, "unclaimed": 23}


def test_a_table_does_not_shrink(engine: Engine) -> None:
    table = created(engine, Small)
    table.grow(30, 20)

    with pytest.raises(ValueError, match="from small to large"):
        table.grow(29, 20)


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


def test_latencies_are_in_milliseconds() -> None:
    seconds = [0.001] * 98 + [0.005, 0.010]

    assert latency(seconds) == {"p50": 1.0, "p99": 10.0}


def test_a_size_is_compared_with_the_small_table() -> None:
    assert timed(Size(10, 20), snapshot=False, seconds=0.0015)["claim_ratio"] == 1.5


def test_errors_that_surface_are_counted_by_ten_thousand_jobs() -> None:
    assert crowd("verbs", deadlock=3)["surfaced_per_10_000"] == 1.5


def test_a_drain_is_cut_into_tenths_of_its_jobs() -> None:
    slow = [(second, 5) for second in (1.0, 2.0, 3.0, 4.0, 5.0)]
    fast = [(5 + second / 10, 5) for second in range(1, 6)]

    rates = rates_of(0.0, [*slow[::2], *fast, *slow[1::2]])

    assert [round(rate) for rate in rates] == [5] * 5 + [50] * 5


def test_the_tables_show_what_was_measured() -> None:
    text = tables(growth())

    assert "| 1,000 | 20 | open | rows | 1.20 | 1.20 | 1.20 |" in text
    assert "| none | 100 | 100 |" in text
    assert "| verbs | 10 | 20,000 | 5,000 |" in text
    assert "3 of deadlock" in text
