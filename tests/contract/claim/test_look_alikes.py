"""Servers that say that they are another product are refused, until their locks are assumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, event
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, UnsupportedDatabase, assume_locks, claim, complete
from sa_jobqueue.worker import Worker
from tests.models import Email, add_emails
from tests.support import make_engine

#: What the server says instead of what it is asked.
TOLD = {
    "postgresql": "SELECT 'PostgreSQL 15.12-YB-2.25.2.0-b0 on x86_64-pc-linux-gnu'",
    "mysql": "SELECT '8.0.11-TiDB-v8.5.6', 'TiDB Server (Apache License 2.0)'",
    "mariadb": "SELECT '8.0.11-TiDB-v8.5.6', 'TiDB Server (Apache License 2.0)'",
}
PRODUCTS = {"postgresql": "YugabyteDB", "mysql": "TiDB", "mariadb": "TiDB"}

pytestmark = pytest.mark.only_on(*TOLD)


@pytest.fixture
def look_alike(db_url: URL, db_alias: str, session: Session) -> Iterator[Engine]:
    """An engine whose server says that it is another product; three jobs wait there."""
    add_emails(session, *"abc")
    engine = make_engine(db_url)

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def tell(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> tuple[str, Any]:
        asks = statement.lower().startswith("select version()")
        return TOLD[db_alias] if asks else statement, parameters

    yield engine
    engine.dispose()


def test_a_look_alike_is_refused_by_name_with_the_way_on(look_alike: Engine, db_alias: str) -> None:
    worker = Worker(look_alike, JobQueue(Email), print, drain=True)
    with Session(look_alike) as session:
        for call in (lambda: claim(session, Email, owner="w"), worker.run):
            with pytest.raises(UnsupportedDatabase, match=PRODUCTS[db_alias]) as refused:
                call()

            assert "assume_locks(engine)" in str(refused.value)
            assert "sa-jobqueue doctor --locks" in str(refused.value)


def test_claims_and_workers_serve_where_the_locks_are_assumed(look_alike: Engine) -> None:
    handled: list[str] = []
    assume_locks(look_alike)

    with Session(look_alike.execution_options(logging_token="other")) as session:
        complete(session, claim(session, Email, owner="w"))
        session.commit()
    worker = Worker(
        look_alike, JobQueue(Email), lambda job: handled.append(job.recipient), drain=True
    )
    worker.run()

    assert handled == ["b", "c"]
