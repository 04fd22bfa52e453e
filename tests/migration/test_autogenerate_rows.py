"""Autogenerate makes no job of a row that was there before its table became a queue."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Mapped, declarative_base, mapped_column

from sa_jobqueue import (
    ArgumentError,
    JobMixin,
    PriorityMixin,
    RetryMixin,
    RoundMixin,
    ScheduleMixin,
)
from sa_jobqueue.migration import online_indexes
from tests.migration.support import ROOT, claimed, column_names, scalar
from tests.migration.test_autogenerate import body, generate
from tests.migration.test_autogenerate import project as project  # a fixture

HOOK = {"process_revision_directives": online_indexes, "transaction_per_migration": True}


def bill(*mixins: Any, **queue_args: Any) -> Any:
    """Declare a table as it is at one time."""

    class Bill(*mixins, declarative_base()):  # type: ignore[misc]  # calls
        __tablename__ = "bill"
        __queue_args__ = queue_args
        id: Mapped[int] = mapped_column(primary_key=True)
        amount: Mapped[int]

    return Bill


def migrate(project: Config, revision: str, entity: Any, *, existing_rows: str = "...") -> str:
    """Write a migration for a model, fill it in, and run it; return its upgrade as written."""
    project.attributes["metadata"] = entity.metadata
    source = generate(project, revision)
    filled = source.replace("existing_rows=...", f"existing_rows={existing_rows}")
    path_of(project, revision).write_text(filled)
    command.upgrade(project, "head")
    command.check(project)
    return body(source, "upgrade")


def path_of(project: Config, revision: str) -> Path:
    folder = Path(str(project.get_main_option("script_location")))
    return folder / "versions" / f"{revision}_generated.py"


@pytest.fixture(params=["plain", "hook", "hook and batch"])
def used(request: pytest.FixtureRequest, project: Config, engine: Engine) -> Config:
    """A project whose table has a row and is no queue yet."""
    hook = HOOK if request.param != "plain" else {}
    batch = {"render_as_batch": True} if request.param == "hook and batch" else {}
    project.attributes["settings"] = {**hook, **batch}
    migrate(project, "a1", bill())
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO bill (id, amount) VALUES (1, 7)"))
    return project


def test_an_upgrade_refuses_until_it_says_what_becomes_of_the_rows(
    used: Config, engine: Engine
) -> None:
    with pytest.raises(
        ArgumentError, match=r'rows that .*bill.* has: .*"done".*"unclaimed".*criterion'
    ):
        migrate(used, "a2", bill(JobMixin, PriorityMixin))

    assert column_names(engine, "bill") == ["id", "amount"]
    source = path_of(used, "a2").read_text()
    assert "add_job_columns(op, 'bill', JobMixin, PriorityMixin, existing_rows=...)" in source


@pytest.mark.parametrize(("existing_rows", "jobs"), [("'done'", []), ("'amount = 7'", [7])])
def test_rows_are_jobs_only_if_the_filled_in_migration_says_so(
    used: Config, engine: Engine, existing_rows: str, jobs: list[int]
) -> None:
    queue = bill(JobMixin, RetryMixin, RoundMixin)

    migrate(used, "a2", queue, existing_rows=existing_rows)

    assert claimed(engine, queue) == jobs
    command.downgrade(used, "a1")
    assert column_names(engine, "bill") == ["id", "amount"]


def test_the_migration_has_the_names_and_the_words_of_the_model(
    project: Config, engine: Engine
) -> None:
    project.attributes["settings"] = HOOK
    migrate(project, "a1", bill())
    queue = bill(JobMixin.named(status="state"), names={"unclaimed": "unsent", "done": "sent"})

    written = migrate(project, "a2", queue, existing_rows='"done"')

    assert "JobMixin.named(status='state'), existing_rows=..., queue_args={'names': " in written
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO bill (id, amount) VALUES (1, 7)"))
    assert scalar(engine, "SELECT state FROM bill") == "unsent"


@pytest.mark.parametrize("settings", [{}, {**HOOK, "render_as_batch": True}])
def test_mixins_that_a_queue_gets_later_leave_its_jobs_alone(
    project: Config, engine: Engine, settings: dict[str, Any]
) -> None:
    project.attributes["settings"] = settings
    migrate(project, "a1", bill(JobMixin))
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO bill (id, amount) VALUES (1, 7)"))

    scheduled = migrate(project, "a2", bill(JobMixin, ScheduleMixin, PriorityMixin))
    retried = bill(JobMixin, ScheduleMixin, PriorityMixin, RetryMixin)
    migrate(project, "a3", retried)

    assert "'bill', PriorityMixin, ScheduleMixin, existing_rows=None" in scheduled
    assert claimed(engine, retried) == [7]
    for revision, last in (("a2", "run_at"), ("a1", "owner_date")):
        command.downgrade(project, revision)
        assert column_names(engine, "bill")[-1] == last


PLAIN_ENV = """
from alembic import context
from models import Base, engine

with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata)
    with context.begin_transaction():
        context.run_migrations()
"""

MODELS = """
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sa_jobqueue import JobMixin

engine = create_engine("sqlite:///shop.db")

class Base(DeclarativeBase):
    pass

class Order(JobMixin, Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
"""


def test_an_env_py_that_does_not_know_us_asks_too(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "migrations" / "versions").mkdir(parents=True)
    (tmp_path / "migrations" / "env.py").write_text(PLAIN_ENV)
    (tmp_path / "migrations" / "script.py.mako").write_text(
        (ROOT / "alembic" / "script.py.mako").read_text()
    )
    (tmp_path / "alembic.ini").write_text("[alembic]\nscript_location = migrations\n")
    with create_engine(f"sqlite:///{tmp_path / 'shop.db'}").begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER NOT NULL PRIMARY KEY)"))

    subprocess.run(
        [sys.executable, "-m", "alembic", "revision", "--autogenerate", "-m", "queue"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        check=True,
        capture_output=True,
        timeout=60,
    )

    (migration,) = (tmp_path / "migrations" / "versions").glob("*.py")
    written = body(migration.read_text(), "upgrade")
    assert written.startswith("add_job_columns(op, 'orders', JobMixin, existing_rows=...)")
    assert not re.search(r"op\.add_column", written)
