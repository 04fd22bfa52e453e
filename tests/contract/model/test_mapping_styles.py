"""Every style of mapping is created, claimed and finished, and Alembic finds it complete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
import sqlmodel
from alembic.autogenerate import compare_metadata, produce_migrations, render_python_code
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import URL, Connection, Engine, MetaData, inspect
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import Session

from sa_jobqueue import claim, complete, count_by_status, enqueue
from tests.contract.model.styles import STYLES, DataclassJob, SQLModelJob, metadata
from tests.models import Base
from tests.support import make_engine, with_empty_tables


@pytest.fixture
def engine(engine: Engine) -> Engine:
    return with_empty_tables(engine, metadata)


@pytest.mark.by_turns("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("entity", STYLES)
def test_a_job_of_every_style_is_enqueued_claimed_and_completed(
    engine: Engine, entity: type[Any]
) -> None:
    with Session(engine) as session:
        assert enqueue(session, entity, [{}]) == 1
        session.commit()

        claimed = claim(session, entity, owner="w", limit=5)
        session.commit()
        complete(session, claimed)
        session.commit()

        assert [type(job) for job in claimed] == [entity]
        assert count_by_status(session, entity)["done"] == 1


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("entity", [DataclassJob, SQLModelJob])
def test_enqueue_sets_what_the_constructors_do_not_know(engine: Engine, entity: type[Any]) -> None:
    with Session(engine) as session:
        enqueue(session, entity, [{"name": "late"}, {"name": "first", "priority": -5}], priority=5)

        claimed = claim(session, entity, owner="w", limit=2)

        assert [(job.name, job.priority) for job in claimed] == [("first", -5), ("late", 5)]
        session.rollback()


@pytest.fixture
def connection(fresh_database: URL) -> Iterator[Connection]:
    """Give a connection to an empty database."""
    engine = make_engine(fresh_database)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def alembic_context(connection: Connection) -> MigrationContext:
    compared = {"compare_type": True, "compare_server_default": True}
    return MigrationContext.configure(connection, opts=compared)


@pytest.mark.parametrize("declared", [metadata, Base.metadata], ids=["styles", "models"])
def test_alembic_writes_a_migration_that_makes_the_tables_without_this_library(
    connection: Connection, declared: MetaData
) -> None:
    context = alembic_context(connection)

    upgrade = produce_migrations(context, declared).upgrade_ops
    assert upgrade is not None
    code = render_python_code(upgrade, migration_context=context)
    run_migration(code, context)

    assert "sa_jobqueue" not in code
    assert compare_metadata(alembic_context(connection), declared) == []
    for table in declared.sorted_tables:
        names = {index["name"] for index in inspect(connection).get_indexes(table.name)}
        assert names >= {index.name for index in table.indexes}
    declared.drop_all(connection)
    declared.create_all(connection)
    assert compare_metadata(alembic_context(connection), declared) == []


def run_migration(code: str, context: MigrationContext) -> None:
    """Run the body of a migration's upgrade(), with the names that its file would have."""
    body = "\n".join(line.removeprefix("    ") for line in code.splitlines())
    exec(body, {"op": Operations(context), "sa": sa, "mysql": mysql, "sqlmodel": sqlmodel})
