"""What ``alembic revision --autogenerate`` writes, run in an application's own env.py."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Column, Engine, ForeignKey, MetaData, String, Text, inspect
from sqlalchemy.orm import Mapped, Session, declarative_base, mapped_column
from sqlalchemy.sql.elements import quoted_name

from sa_jobqueue import (
    ArgumentError,
    JobMixin,
    JobStatus,
    PriorityMixin,
    RetryMixin,
    RoundMixin,
    ScheduleMixin,
    claim,
    complete,
)
from sa_jobqueue.migration import online_indexes
from tests.docs.markdown import code_blocks, page
from tests.migration.support import (
    ORDERS,
    ROOT,
    claimed,
    column_names,
    columns_of,
    execute,
    index_names,
    insert_orders,
    scalar,
    statuses,
)
from tests.support import SERVERS, is_like

DATABASES = ("sqlite", *SERVERS)

ENV = """
from alembic import context

connectable = context.config.attributes["engine"]
with connectable.connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=context.config.attributes["metadata"],
        compare_server_default=True,
        **context.config.attributes.get("settings", {}),
    )
    with context.begin_transaction():
        context.run_migrations()
"""

HOOK = {"process_revision_directives": online_indexes, "transaction_per_migration": True}
ENVIRONMENTS = {"plain": {}, "hook": HOOK, "hook and batch": {**HOOK, "render_as_batch": True}}


@pytest.fixture
def project(tmp_path: Path, engine: Engine) -> Config:
    """Make a user's project with this project's template for migrations."""
    shutil.copy(ROOT / "alembic" / "script.py.mako", tmp_path)
    (tmp_path / "env.py").write_text(ENV)
    (tmp_path / "versions").mkdir()
    config = Config(stdout=io.StringIO(), attributes={"engine": engine})
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("path_separator", "os")
    return config


def generate(project: Config, revision: str, metadata: MetaData | None = None) -> str:
    """Write a migration to the models of the project, or to others from now on."""
    if metadata is not None:
        project.attributes["metadata"] = metadata
    command.revision(project, message="generated", autogenerate=True, rev_id=revision)
    return file_of(project, revision).read_text()


def file_of(project: Config, revision: str) -> Path:
    folder = Path(str(project.get_main_option("script_location")))
    return folder / "versions" / f"{revision}_generated.py"


def body(source: str, function: str) -> str:
    """Return what a function of a migration does, without comments."""
    found = re.search(rf"def {function}\(\) -> None:\n(.*?)(?=\n\n\n|\Z)", source, re.S)
    assert found is not None
    lines = [line.strip() for line in found[1].splitlines()]
    return "\n".join(line for line in lines if line and not line.startswith("#"))


def bill(*mixins: Any, **queue_args: Any) -> Any:
    """Declare the table as it is at one time."""
    base: Any = declarative_base()

    class Customer(base):  # type: ignore[misc]  # a call
        __tablename__ = "customer"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Bill(*mixins, base):  # type: ignore[misc]  # as above
        __tablename__ = "bill"
        __queue_args__ = queue_args
        id: Mapped[int] = mapped_column(primary_key=True)
        amount: Mapped[int]
        customer_id: Mapped[int | None] = mapped_column(ForeignKey(Customer.id, name="fk_bill"))

    return Bill


def with_note(entity: Any, *of_column: Any, **options: Any) -> Any:
    entity.__table__.append_column(Column("note", *of_column, **options))
    return entity


def with_claim_index(entity: Any, name: str) -> Any:
    (index,) = (each for each in entity.__table__.indexes if each.name == "ix_bill_claim")
    index.name = quoted_name(name, quote=None)
    return entity


# A new table


def test_the_migration_of_a_new_queue_looks_as_if_written_by_hand(
    project: Config, engine: Engine
) -> None:
    queue = bill(JobMixin.named(status="state"), RetryMixin, names={"unclaimed": "unsent"})

    source = generate(project, "a1", queue.metadata)

    assert "sa_jobqueue" not in source
    unsent = "sa.text(\"state = 'unsent'\")"
    assert is_like(
        body(source, "upgrade"),
        ".. op.create_table('bill', .. 'state', sa.String(length=16), server_default='unsent', "
        "nullable=False .. op.create_index('ix_bill_claim', 'bill', ['state', 'run_at', 'id'], "
        f"unique=False, postgresql_where={unsent}, sqlite_where={unsent}) .. 'ix_bill_reap'",
    )
    command.upgrade(project, "head")
    with Session(engine) as session:
        session.add(queue(amount=1))
        session.commit()
        jobs = claim(session, queue, owner="clerk")
        complete(session, jobs)
        session.commit()
        assert [job.state for job in jobs] == [JobStatus.DONE]
    for settings in ENVIRONMENTS.values():
        project.attributes["settings"] = settings
        command.check(project)
    command.downgrade(project, "base")
    assert inspect(engine).get_table_names() == ["alembic_version"]


HEAD = """
revision, down_revision, branch_labels, depends_on = "p1", None, None, None
"""


def test_the_migration_of_the_page_is_run_as_it_stands_there(
    project: Config, engine: Engine
) -> None:
    (migration,) = (
        block for block in code_blocks(page("docs/migrations.md"), "python") if "downgrade" in block
    )
    file_of(project, "p1").write_text(migration + HEAD)
    project.attributes["metadata"] = None
    ORDERS.create(engine)
    insert_orders(engine, [1])

    command.upgrade(project, "head")

    assert statuses(engine) == {1: "done"}
    assert index_names(engine) == {"ix_orders_claim", "ix_orders_reap"}

    command.downgrade(project, "base")

    assert column_names(engine) == ["id", "amount", "note"]


# A table that is there


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of the model of a table with one row, whose amount is 7.

    Attributes:
        upgrade, downgrade: parts of what is written for each, in their order. Where it asks for
            `existing_rows`, nothing is changed until that is answered.
        answer: the answer.
        jobs: the amounts of the jobs afterwards.
        indexes: columns of indexes afterwards; None: there is no such index.
        values: values of the row afterwards.
        environments: those whose migrations are written so.
    """

    before: Any
    after: Any
    upgrade: str
    downgrade: str
    answer: str = ""
    jobs: list[int] | None = field(default_factory=lambda: [7])
    indexes: dict[str, list[str] | None] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    environments: tuple[str, ...] = ("hook", "hook and batch")


CHANGES = {
    "a table becomes a queue": Change(
        before=bill(),
        after=bill(JobMixin, RetryMixin, RoundMixin),
        upgrade="add_job_columns(op, 'bill', JobMixin, RetryMixin, existing_rows=...)",
        downgrade=".. drop_job_columns(op, 'bill', JobMixin, RetryMixin)",
        answer="'amount = 7'",
        environments=("plain", "hook", "hook and batch"),
    ),
    "a queue becomes a table": Change(
        before=bill(JobMixin, RetryMixin),
        after=bill(),
        upgrade=".. drop_job_columns(op, 'bill', JobMixin, RetryMixin)",
        downgrade="add_job_columns(op, 'bill', JobMixin, RetryMixin, existing_rows=...)",
        answer="'done'",
        jobs=None,
        environments=("plain", "hook", "hook and batch"),
    ),
    "a table becomes a queue with names, words and attempts of its own": Change(
        before=bill(),
        after=bill(
            *(JobMixin.named(status="state"), RetryMixin),
            names={"unclaimed": "unsent"},
            max_attempts=5,
        ),
        upgrade=".. JobMixin.named(status='state'), RetryMixin, existing_rows=..., queue_args=",
        downgrade=".. drop_job_columns(op, 'bill', JobMixin.named(status='state'), RetryMixin)",
        answer="'unclaimed'",
        values={"max_attempts": 5},
    ),
    "a queue gets priorities and schedules": Change(
        before=bill(JobMixin),
        after=bill(JobMixin, ScheduleMixin, PriorityMixin),
        upgrade="add_job_columns(op, 'bill', PriorityMixin, ScheduleMixin, existing_rows=None) .. "
        "create_index_online(op, 'ix_bill_claim'",
        downgrade="create_index_online( .. drop_job_columns(op, 'bill', PriorityMixin, Sched",
        indexes={"ix_bill_claim": ["status", "priority", "run_at", "id"]},
        values={"run_at < '1971-01-01'": True},
    ),
    "a queue with schedules gets priorities and retries": Change(
        before=bill(JobMixin, ScheduleMixin),
        after=bill(JobMixin, ScheduleMixin, PriorityMixin, RetryMixin),
        upgrade=".. add_column( .. 'attempts' .. create_index_online(",
        downgrade="create_index_online( .. drop_column( .. 'priority'",
        indexes={"ix_bill_claim": ["status", "priority", "run_at", "id"]},
        values={"max_attempts": 20},
    ),
    "a queue gets an equality, which is a foreign key": Change(
        before=bill(JobMixin),
        after=bill(JobMixin, equality="customer_id"),
        upgrade="create_index_online(op, .. ['customer_id', 'status', 'id'], .. replace=True)",
        downgrade="create_index_online(op, .. ['status', 'id'], unique=False, .. replace=True)",
        indexes={"ix_bill_claim": ["customer_id", "status", "id"]},
    ),
    "the claim index gets another name": Change(
        before=bill(JobMixin),
        after=with_claim_index(bill(JobMixin), "ix_claim_of_bills"),
        upgrade="create_index_online( .. drop_index_online(",
        downgrade="create_index_online( .. drop_index_online(",
        indexes={"ix_bill_claim": None, "ix_claim_of_bills": ["status", "id"]},
    ),
    "a queue gets an index of keys and one of failed jobs": Change(
        before=bill(JobMixin),
        after=bill(JobMixin, failed_index=True, per_key="amount"),
        upgrade="create_index_online( .. create_index_online(",
        downgrade="drop_index_online( .. drop_index_online(",
        indexes={
            "ix_bill_failed": ["status", "owner_date", "id"],
            "ix_bill_key_amount": ["status", "amount", "id"],
        },
    ),
    # MySQL makes no TEXT of a column with an index; SQLite changes no type.
    "a column with an index becomes a long text": Change(
        before=with_note(bill(JobMixin), String(50), index=True),
        after=with_note(bill(JobMixin), Text),
        upgrade="drop_index_online( .. alter_column(",
        downgrade=".. alter_column( .. create_index_online(",
        indexes={"ix_bill_note": None},
    ),
}


def databases_of(name: str, environment: str) -> tuple[str, ...]:
    """Name the databases that differ: SQLite alone changes tables batch by batch."""
    is_batch, changes_a_type = environment == "hook and batch", "long text" in name
    return ("sqlite",) * (not changes_a_type) if is_batch else DATABASES[changes_a_type:]


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        pytest.param(name, environment, marks=pytest.mark.only_on(*databases))
        for name, change in CHANGES.items()
        for environment in change.environments
        if (databases := databases_of(name, environment))
    ],
)
def test_a_change_of_the_model_is_migrated_there_and_back(
    project: Config, engine: Engine, name: str, environment: str
) -> None:
    change = CHANGES[name]
    project.attributes["settings"] = ENVIRONMENTS[environment]
    generate(project, "a1", change.before.metadata)
    command.upgrade(project, "head")
    execute(engine, "INSERT INTO bill (id, amount) VALUES (1, 7)")
    before = shape(engine)

    source = generate(project, "a2", change.after.metadata)

    assert is_like(body(source, "upgrade"), change.upgrade)
    assert is_like(body(source, "downgrade"), change.downgrade)
    if environment != "plain" and change.jobs is not None:
        assert not re.search(r"op\.(create|drop)_index", source)
    move(project, engine, "upgrade", source, change.answer)
    command.check(project)
    _, there = shape(engine)
    assert {index: there.get(index) for index in change.indexes} == change.indexes
    for expression, value in change.values.items():
        assert scalar(engine, f"SELECT {expression} FROM bill") == value
    assert change.jobs is None or claimed(engine, change.after) == change.jobs

    move(project, engine, "downgrade", source, change.answer)
    assert shape(engine) == before
    assert len(inspect(engine).get_foreign_keys("bill")) == 1


def shape(engine: Engine) -> tuple[set[str], dict[str, list[str | None]]]:
    """Return the columns of the table, and its indexes without those that InnoDB adds."""
    names = sorted(filter(None, index_names(engine, "bill")))
    indexes = {name: columns_of(engine, name, "bill") for name in names if name != "fk_bill"}
    return set(column_names(engine, "bill")), indexes


def move(project: Config, engine: Engine, way: str, source: str, answer: str) -> None:
    """Go a way of a migration; if that asks what becomes of the rows, answer it then."""
    target = {"upgrade": "head", "downgrade": "a1"}[way]
    if "existing_rows=..." in body(source, way):
        before = shape(engine)
        with pytest.raises(ArgumentError, match=r'rows that .*bill.*: .*"done".*"unclaimed"'):
            getattr(command, way)(project, target)
        assert shape(engine) == before
        answered = source.replace("existing_rows=...", f"existing_rows={answer}")
        file_of(project, "a2").write_text(answered)
    getattr(command, way)(project, target)


UNAWARE = """
from alembic.autogenerate import produce_migrations, render_python_code
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sa_jobqueue import JobMixin

class Base(DeclarativeBase):
    pass

class Order(JobMixin, Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)

with create_engine("sqlite://").connect() as connection:
    connection.execute(text("CREATE TABLE orders (id INTEGER NOT NULL PRIMARY KEY)"))
    context = MigrationContext.configure(connection)
    print(render_python_code(produce_migrations(context, Base.metadata).upgrade_ops))
"""


def test_a_process_that_imports_models_only_asks_too() -> None:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

    written = subprocess.run(
        [sys.executable, "-c", UNAWARE],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout

    assert "add_job_columns(op, 'orders', JobMixin, existing_rows=...)" in written
    assert "op.add_column" not in written
