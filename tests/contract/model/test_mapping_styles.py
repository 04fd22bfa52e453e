"""Every style of mapping is created, claimed and finished, and Alembic finds it complete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import alembic.command
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata, produce_migrations, render_python_code
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    MetaData,
    String,
    inspect,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
)

from sa_jobqueue import (
    JobMixin,
    PriorityMixin,
    RetryMixin,
    ScheduleMixin,
    claim,
    complete,
    count_by_status,
    enqueue,
)
from tests.contract.model.styles import STYLES, DataclassJob, Named, SQLModelJob, metadata
from tests.support import make_engine


@pytest.fixture(scope="module")
def engine(db_url: URL) -> Iterator[Engine]:
    """Give an engine with the tables of all styles."""
    engine = make_engine(db_url)
    metadata.drop_all(engine)
    metadata.create_all(engine)
    yield engine
    metadata.drop_all(engine)
    engine.dispose()


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
        assert {status: n for status, n in count_by_status(session, entity).items() if n} == {
            "shipped" if entity is Named else "done": 1
        }


@pytest.mark.parametrize("entity", [DataclassJob, SQLModelJob])
def test_enqueue_sets_what_the_constructors_do_not_know(engine: Engine, entity: type[Any]) -> None:
    with Session(engine) as session:
        enqueue(session, entity, [{"name": "late"}, {"name": "first", "priority": -5}], priority=5)

        claimed = claim(session, entity, owner="w", limit=2)

        assert [(job.name, job.priority) for job in claimed] == [("first", -5), ("late", 5)]
        session.rollback()


def test_a_job_added_to_the_session_is_a_job_in_the_styles_with_a_constructor(
    engine: Engine,
) -> None:
    with Session(engine) as session:
        session.add_all([DataclassJob(name="added"), SQLModelJob(name="added")])
        session.flush()

        styles: list[type[Any]] = [DataclassJob, SQLModelJob]
        for entity in styles:
            assert [job.name for job in claim(session, entity, owner="w")] == ["added"]
        session.rollback()


class FirstPageBase(DeclarativeBase):
    pass


class Email(JobMixin, FirstPageBase):  # an existing table becomes a queue
    __tablename__ = "email"
    id: Mapped[int] = mapped_column(primary_key=True)
    recipient: Mapped[str] = mapped_column(String(100))


class NamedBase(DeclarativeBase):
    pass


class Order(
    JobMixin.named(status="job_status", owner="job_owner", owner_date="job_date"),  # type: ignore[misc]  # a call
    PriorityMixin.named(priority="job_priority"),  # type: ignore[misc]  # a call
    NamedBase,
):
    __tablename__ = "customer_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(10))
    owner: Mapped[int]


class MixinsBase(DeclarativeBase):
    pass


class Task(JobMixin, PriorityMixin, ScheduleMixin, RetryMixin, MixinsBase):
    __tablename__ = "task"
    id: Mapped[int] = mapped_column(primary_key=True)


class ArgsBase(DeclarativeBase):
    metadata = MetaData(naming_convention={"ix": "ix_%(table_name)s_%(constraint_name)s"})


class Push(JobMixin, ArgsBase):
    __tablename__ = "push"
    __queue_args__ = {  # noqa: RUF012 - as users write it
        "equality": ["channel"],
        "order_by": ["weight desc"],
        "ready": ["rendered"],
        "names": {"unclaimed": "unsent"},
    }
    id: Mapped[int] = mapped_column(primary_key=True)
    channel: Mapped[str] = mapped_column(String(10))
    weight: Mapped[int]


SCHEMAS = [Email, Task, Order, Push]


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


@pytest.mark.parametrize("entity", SCHEMAS)
def test_alembic_finds_no_difference_after_create_all(
    connection: Connection, entity: type[Any]
) -> None:
    entity.metadata.create_all(connection)

    differences = compare_metadata(alembic_context(connection), entity.metadata)

    assert differences == []


@pytest.mark.parametrize("entity", SCHEMAS)
def test_alembic_writes_a_migration_that_makes_the_table_without_this_library(
    connection: Connection, entity: type[Any]
) -> None:
    context = alembic_context(connection)

    upgrade = produce_migrations(context, entity.metadata).upgrade_ops
    assert upgrade is not None
    code = render_python_code(upgrade, migration_context=context)
    run_migration(code, context)

    assert "sa_jobqueue" not in code
    assert compare_metadata(alembic_context(connection), entity.metadata) == []
    names = {index["name"] for index in inspect(connection).get_indexes(entity.__tablename__)}
    assert names == {index.name for index in entity.__table__.indexes}


def run_migration(code: str, context: MigrationContext) -> None:
    """Run the body of a migration's upgrade(), with the names that its file would have."""
    body = "\n".join(line.removeprefix("    ") for line in code.splitlines())
    exec(body, {"op": Operations(context), "sa": sa, "mysql": mysql})


ENV = """
from alembic import context
given = context.config.attributes
context.configure(connection=given["connection"], target_metadata=given["metadata"])
with context.begin_transaction():
    context.run_migrations()
"""


def test_alembics_own_commands_write_and_run_the_migration(
    connection: Connection, tmp_path: Path
) -> None:
    config = alembic_config(tmp_path, connection=connection, metadata=Task.metadata)

    alembic.command.revision(config, autogenerate=True)
    alembic.command.upgrade(config, "head")

    alembic.command.check(config)  # raises if a difference is left
    (migration,) = (tmp_path / "versions").glob("*.py")
    assert "sa_jobqueue" not in migration.read_text()


def alembic_config(folder: Path, **attributes: Any) -> Config:
    """Make a folder of migrations, with alembic's own template."""
    template = Path(alembic.__path__[0]) / "templates" / "generic" / "script.py.mako"
    (folder / "script.py.mako").write_text(template.read_text())
    (folder / "env.py").write_text(ENV)
    (folder / "versions").mkdir()
    config = Config(attributes=attributes)
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "os")
    return config


def test_the_folder_of_migrations_beside_the_package_does_not_hide_alembic() -> None:
    ours = Path(__file__).parents[2] / "alembic"

    assert ours not in map(Path, alembic.__path__)
    assert alembic.__version__
