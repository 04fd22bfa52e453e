"""Hot queues: many connections on one queue, and what their claims miss."""

from __future__ import annotations

import pytest
from sqlalchemy import URL

from benchmarks.harness.databases import Database
from benchmarks.hot import TABLES, WAYS, main, short_claims, tables

CONNECTIONS = (4,)


@pytest.mark.usefixtures("forked_hosts")
@pytest.mark.by_turns("sqlite", "mysql")
@pytest.mark.parametrize("kind", TABLES)
def test_each_way_drains_the_queue(
    fresh_database: URL, db_alias: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.hot.PROCESSES", 2)
    database = Database(db_alias, fresh_database.render_as_string(hide_password=False))

    found = main.measure(
        database, connections=CONNECTIONS, batch=(2,), turns=20, ways=tuple(WAYS), kinds=(kind,)
    )["results"]

    assert [(row["way"], row["connections"]) for row in found] == [
        (way, count) for way in WAYS for count in CONNECTIONS
    ]
    assert {row["jobs"] for row in found} == {40}
    assert all(row["surfaced"] == {} and row["short"] == 0 for row in found)
    assert len(tables({"results": found}).splitlines()) == 2 + len(found)


def test_a_claim_is_short_if_it_gets_less_than_a_batch_while_a_batch_is_ready() -> None:
    full, short = (0.0, 1.0, 10), (2.0, 3.0, 4)

    assert short_claims([full, short], batch=10, jobs=30) == 1
    assert short_claims([full, (2.0, 3.0, 10)], batch=10, jobs=30) == 0
