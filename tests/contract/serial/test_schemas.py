"""A key is locked for its table, whichever way a worker has to say which table it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue
from tests.contract.serial.keyed import NOTES, KeyedBase, Note, add
from tests.support import make_engine

pytestmark = pytest.mark.only_on("mysql", "mariadb")


@pytest.fixture
def tenant(fresh_database: URL) -> Iterator[Engine]:
    """An engine whose default database is that of the tables."""
    engine = make_engine(fresh_database)
    KeyedBase.metadata.create_all(engine)
    yield engine
    engine.dispose()


def claim_and_add_a_sooner_job(engine: Engine, session: Session) -> None:
    """Claim a job of an account in the session; commit another one that comes before it."""
    with Session(engine) as other:
        add(other, Note, 1, id=5)
    assert len(NOTES.claim(session, owner="a")) == 1
    with Session(engine) as other:
        add(other, Note, 1, id=3)


@pytest.mark.parametrize("named", [False, True], ids=["translated", "of the table"])
def test_a_schema_is_the_database_that_others_have_as_their_default(
    tenant: Engine, engine: Engine, named: bool
) -> None:
    class OwnBase(DeclarativeBase):
        pass

    class Named(JobMixin, OwnBase):
        __tablename__ = "note"
        __table_args__ = {"schema": tenant.url.database}  # noqa: RUF012 - as users write it
        id: Mapped[int] = mapped_column(primary_key=True)
        account_id: Mapped[int | None]

    queue: Any = JobQueue(Named, serial_by=Named.account_id) if named else NOTES
    bind = engine if named else translated(engine, tenant)
    with Session(tenant) as one, Session(bind) as other:
        claim_and_add_a_sooner_job(tenant, one)

        assert len(queue.claim(other, owner="b")) == 0
        one.rollback()
        assert len(queue.claim(other, owner="b")) == 1


def translated(engine: Engine, tenant: Engine) -> Engine:
    return engine.execution_options(schema_translate_map={None: tenant.url.database})


def test_the_same_table_name_in_two_databases_is_two_tables(tenant: Engine, engine: Engine) -> None:
    with Session(translated(engine, tenant)) as one, Session(engine) as other:
        for session in (one, other):
            add(session, Note, 1)

        assert len(NOTES.claim(one, owner="a")) == 1
        assert len(NOTES.claim(other, owner="b")) == 1
