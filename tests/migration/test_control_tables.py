"""The tables of control and of schedules, created by hand-written migrations."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, MetaData, inspect, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin
from sa_jobqueue.control import control_tables, pause, paused
from sa_jobqueue.control.tables import known_tables
from sa_jobqueue.migration import (
    create_control_tables,
    create_schedules_table,
    drop_control_tables,
    drop_schedules_table,
)
from sa_jobqueue.schedules import Schedules
from tests.migration.support import SERVERS, breaks_at, differences, migrating, writing_script
from tests.migration.test_autogenerate import body, generate
from tests.migration.test_autogenerate import project as project  # a fixture

REVISION = """
from alembic import op
from sa_jobqueue.migration import (
    create_control_tables, create_schedules_table, drop_control_tables, drop_schedules_table
)

revision, down_revision = "a1", None

def upgrade():
    create_control_tables(op)
    create_schedules_table(op)

def downgrade():
    drop_schedules_table(op)
    drop_control_tables(op)
"""

TABLES = {"job_workers", "job_pauses", "job_stops", "job_schedules"}


class Base(DeclarativeBase):
    """The base of an application with control and schedules."""

    metadata = MetaData(naming_convention={"ix": "i_%(column_0_label)s", "pk": "pk_%(table_name)s"})


class Ticket(JobMixin, Base):
    """A job of that application."""

    __tablename__ = "ticket"
    id: Mapped[int] = mapped_column(primary_key=True)


CONTROL = control_tables(Base.metadata)
Schedules(Base.metadata)


@pytest.fixture
def queue(engine: Engine) -> Engine:
    """The engine of a database that has the application's queue only."""
    Base.metadata.create_all(engine, [Base.metadata.tables["ticket"]])
    return engine


def tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names())


def test_a_migration_by_hand_creates_what_autogenerate_would(
    project: Config, queue: Engine
) -> None:
    project.attributes["metadata"] = Base.metadata
    folder = Path(str(project.get_main_option("script_location")))
    (folder / "versions" / "a1_control.py").write_text(REVISION)

    with queue.connect() as reader:
        reader.execute(select(Ticket.id)).all()  # a transaction that stays open
        command.upgrade(project, "head")

    assert body(generate(project, "a2"), "upgrade") == "pass"
    with Session(queue) as session:
        assert pause(session, Ticket)
        assert len(paused(session, tables=CONTROL)) == 1
        session.commit()

    command.downgrade(project, "base")

    assert tables(queue) == {"ticket", "alembic_version"}


def test_the_tables_can_be_created_again_after_an_interruption(queue: Engine) -> None:
    stop = 1
    while breaks_at(queue, stop, lambda: migrate(queue), before=("\nCREATE", "CREATE")):
        migrate(queue)
        assert differences(queue, Base.metadata) == []
        with migrating(queue) as op:
            drop_schedules_table(op)
            drop_control_tables(op)
            drop_control_tables(op)
        stop += 1

    assert stop > len(TABLES)


def migrate(engine: Engine) -> None:
    with migrating(engine, target_metadata=Base.metadata) as op:
        create_control_tables(op)
        create_schedules_table(op)


def test_the_tables_have_the_names_that_are_given(engine: Engine) -> None:
    metadata = MetaData()
    control_tables(metadata, prefix="mail")
    Schedules(metadata, name="mail_plans")

    with migrating(engine) as op:
        create_control_tables(op, prefix="mail")
        create_schedules_table(op, name="mail_plans")

    assert tables(engine) == {"mail_workers", "mail_pauses", "mail_stops", "mail_plans"}
    assert differences(engine, metadata) == []


@pytest.mark.parametrize("server", [*SERVERS, "sqlite"])
def test_a_script_creates_and_drops_the_tables(server: str) -> None:
    with writing_script(server) as (op, script):
        create_control_tables(op)
        create_schedules_table(op)
        drop_schedules_table(op)
        drop_control_tables(op)

    written = script.getvalue()
    for name in TABLES:
        assert f"CREATE TABLE IF NOT EXISTS {name} (" in written
        assert f"DROP TABLE IF EXISTS {name};" in written
    assert "job_stops_owner" in written


@pytest.mark.only_on("postgresql")
def test_the_tables_may_have_a_schema_of_their_own(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA control")

    with migrating(engine) as op:
        create_control_tables(op, schema="control")
        create_schedules_table(op, schema="control")

    assert set(inspect(engine).get_table_names("control")) == TABLES
    assert tables(engine) == set()


@pytest.mark.only_on("sqlite")
def test_a_migration_leaves_the_only_control_tables_of_a_process_alone(engine: Engine) -> None:
    before = len(list(known_tables()))
    with migrating(engine) as op:
        create_control_tables(op)

    assert len(list(known_tables())) == before
