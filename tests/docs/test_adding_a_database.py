"""docs/adding-a-database.md: a user's file makes an invented database work."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, func, select
from sqlalchemy.dialects import registry as dialects
from sqlalchemy.dialects.sqlite.base import SQLiteTypeCompiler
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Engine
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.sql.compiler import SQLCompiler

from sa_jobqueue import (
    JobMixin,
    JobStatus,
    RetryMixin,
    ScheduleMixin,
    UnsupportedDatabase,
    claim,
    claim_statements,
    complete,
    count_by_status,
    enqueue,
    fail,
    is_transient,
    position,
    reap,
    retry,
    utc_now,
)
from sa_jobqueue.dialects import registry

from .added import add_as_told, copied_package, run_python
from .markdown import ROOT, code_blocks, page

PAGE = page("docs/adding-a-database.md")
FILE = code_blocks(PAGE, "python")[0]

DIALECTS = "sa_jobqueue/dialects"


class Base(DeclarativeBase):
    """The base of this test's tables."""


class Email(JobMixin, Base):
    __tablename__ = "adding_email"

    id: Mapped[int] = mapped_column(primary_key=True)


class Letter(JobMixin, RetryMixin, ScheduleMixin, Base):
    __tablename__ = "adding_letter"

    id: Mapped[int] = mapped_column(primary_key=True)


class TortoiseCompiler(SQLCompiler):
    """Renders what Tortoise promises."""

    def for_update_clause(self, *_: Any, **__: Any) -> str:
        return " FOR UPDATE SKIP LOCKED"


class TortoiseDialect(DefaultDialect):
    """The SQLAlchemy dialect of a database that does not exist."""

    name = "tortoise"
    statement_compiler = TortoiseCompiler
    supports_statement_cache = True


class TimesAsText(SQLiteTypeCompiler):
    """SQLite would cast a time to a number."""

    def visit_DATETIME(self, *_: Any, **__: Any) -> str:  # noqa: N802 - SQLAlchemy's own name
        return "TEXT"


class TortoiseServerDialect(SQLiteDialect_pysqlite):
    """The same with a server: SQLite's, under another name."""

    name = "tortoise"
    type_compiler_cls = TimesAsText
    supports_statement_cache = True


class HareDialect(DefaultDialect):
    """The dialect of a database that nobody registered."""

    name = "hare"
    supports_statement_cache = True


@pytest.fixture
def tortoise() -> Iterator[TortoiseDialect]:
    """Run the file of the page; forget the database afterwards."""
    exec(FILE, {"__name__": "tortoise"})
    yield TortoiseDialect()
    registry._registered.pop("tortoise")


@pytest.fixture
def server(tortoise: TortoiseDialect) -> Iterator[Engine]:
    """A database that can be connected to, with a clock as the page's file reads it."""
    dialects.register("tortoise", __name__, TortoiseServerDialect.__name__)
    engine = create_engine("tortoise://")
    clock = Clock()
    event.listen(engine, "connect", clock.add_to)
    event.listen(engine, "before_cursor_execute", clock.tick)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


class Clock:
    """The time at which the statement began."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def add_to(self, driver: Any, _: Any) -> None:
        driver.create_function("MOMENT", 0, lambda: self.later(0))
        driver.create_function("MOMENT_LATER", 1, self.later)

    def tick(self, *_: Any) -> None:
        self.now = datetime.now(UTC)

    def later(self, microseconds: int) -> str:
        return (self.now + timedelta(microseconds=microseconds)).strftime("%Y-%m-%d %H:%M:%S.%f")


def rendered(statement: Any, dialect: DefaultDialect) -> str:
    return " ".join(str(statement.compile(dialect=dialect)).split())


# The file


def test_the_file_of_a_user_imports_nothing_of_the_library_but_its_dialects() -> None:
    imported = {
        node.module for node in ast.walk(ast.parse(FILE)) if isinstance(node, ast.ImportFrom)
    }

    assert {name for name in imported if name and name.startswith("sa_jobqueue")} == {
        "sa_jobqueue.dialects"
    }


def test_with_this_file_alone_a_job_goes_through_its_life(server: Engine) -> None:
    with Session(server) as session:
        enqueue(session, Letter, [{}, {}, {}])
        session.commit()
        first, second = claim(session, Letter, owner="w", limit=2)
        session.commit()
        complete(session, [first])
        fail(session, [second], error="no stamp")
        session.commit()
        (third,) = session.scalars(select(Letter).where(Letter.id == 3))
        rank = position(session, third)
        claim(session, Letter, owner="w", limit=1)
        session.commit()
        reaped = reap(session, Letter, lease=timedelta(microseconds=1))
        session.commit()
        retried = retry(session, [first])
        session.commit()

        assert rank in (1, 2)
        assert len(reaped) == 1
        assert retried == [first]
        assert count_by_status(session, Letter)[JobStatus.UNCLAIMED] == 3


def test_within_the_library_it_is_a_folder_and_the_list_of_databases(tmp_path: Path) -> None:
    copy = copied_package(tmp_path)
    own, listed = add_as_told(PAGE, copy)
    folder = copy / DIALECTS / "tortoise"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Tortoise: what it can do, and how."""\n')

    (folder / "database.py").write_text(_within_the_library((copy / own).read_text()))
    (copy / own).unlink()

    assert listed == f"{DIALECTS}/registry.py"
    run_python(
        copy,
        "from sa_jobqueue.dialects import database_of_dialect as found\n"
        "from sqlalchemy.engine.default import DefaultDialect\n"
        "class Dialect(DefaultDialect): name = 'tortoise'\n"
        "assert type(found(Dialect())).__name__ == 'Tortoise'\n",
    )


def _within_the_library(file: str) -> str:
    """Change the imports as the page says, and leave the last line out."""
    public = "from sa_jobqueue.dialects import Database, register, utc_now\n"
    assert public in file
    inner = file.replace(public, "from ..clock import utc_now\nfrom ..database import Database\n")
    *kept, last = inner.rstrip().splitlines()
    assert last.startswith("register(")
    return "\n".join(kept) + "\n"


def test_no_other_module_of_the_library_imports_the_folder_of_a_database() -> None:
    folders = {path.parent for path in (ROOT / DIALECTS).glob("*/__init__.py")}
    names = {folder.name for folder in folders}

    importing = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "sa_jobqueue").rglob("*.py")
        if path.parent not in folders and names & _packages_imported(path)
    }

    assert importing == {f"{DIALECTS}/registry.py"}


def _packages_imported(path: Path) -> set[str]:
    """Name all packages from which a module imports, but those of SQLAlchemy."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    modules = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    own = {module for module in modules if not module.startswith("sqlalchemy")}
    return {part for module in own for part in module.split(".")}


def test_the_folders_of_the_databases_have_the_files_that_the_parts_are_named_by() -> None:
    parts = {"named_locks", "serial_key_locks", "examination", "schema_changes"}
    expected = {f"{name}.py" for name in (*parts, "database", "owner_liveness", "__init__")}

    for folder in (ROOT / DIALECTS).glob("*/"):
        if folder.name != "__pycache__":
            there = {path.name for path in folder.glob("*.py")}
            assert expected - there == set(), folder.name
    assert all(f"`{part}()`" in PAGE for part in parts)


# What it answers


def test_a_registered_database_claims_by_its_capabilities_and_its_own_clock(
    tortoise: TortoiseDialect,
) -> None:
    locking, marking = claim_statements(Email, dialect=tortoise)

    assert rendered(locking, tortoise) == (
        "SELECT adding_email.id, adding_email.status, adding_email.owner, "
        "adding_email.owner_date, MOMENT() AS sa_jobqueue_date FROM adding_email "
        "WHERE adding_email.status = 'unclaimed' ORDER BY adding_email.id "
        "LIMIT :sa_jobqueue_limit FOR UPDATE SKIP LOCKED"
    )
    assert rendered(marking, tortoise).startswith("UPDATE adding_email SET status='claimed'")


def test_a_registered_database_shifts_its_clock(tortoise: TortoiseDialect) -> None:
    later = select(utc_now(func.wait()))

    assert rendered(later, tortoise) == "SELECT MOMENT_LATER(wait()) AS utc_now_1"


def test_a_registered_database_says_which_errors_are_transient(tortoise: TortoiseDialect) -> None:
    deadlock = Exception("deadlock")
    deadlock.code = "DEADLOCK"  # type: ignore[attr-defined]  # as a driver sets it

    assert is_transient(DBAPIError("UPDATE", {}, deadlock))
    assert not is_transient(DBAPIError("UPDATE", {}, Exception("syntax error")))


def test_a_registered_database_that_is_too_old_is_refused(tortoise: TortoiseDialect) -> None:
    tortoise.server_version_info = (1, 9)

    with pytest.raises(UnsupportedDatabase, match=r"Tortoise 1\.9 is too old.* 2\.0 or later"):
        claim_statements(Email, dialect=tortoise)


def test_a_strategy_that_the_database_cannot_run_is_refused(tortoise: TortoiseDialect) -> None:
    with pytest.raises(UnsupportedDatabase, match="'compare_and_set' cannot run on Tortoise"):
        claim_statements(Email, dialect=tortoise, strategy="compare_and_set")


def test_a_database_that_nobody_registered_is_refused_with_the_way_out() -> None:
    with pytest.raises(UnsupportedDatabase, match=r"'hare'.*dialects\.register\(\)"):
        claim_statements(Email, dialect=HareDialect())
