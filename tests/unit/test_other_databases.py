"""A package that is only installed serves another database, by its entry points."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from sa_jobqueue import UnsupportedDatabase
from sa_jobqueue.doctor import examine
from tests.models import Email

INVENTED = '''
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.ext.compiler import compiles

from sa_jobqueue.databases import Database, utc_now


class Dialect(SQLiteDialect_pysqlite):
    """An engine that keeps its rows as SQLite does, under a name of its own."""

    name = "invented"
    supports_statement_cache = True


class Invented(Database):
    """It can do what every database can: claims by compare-and-set."""

    title = "Invented"
    minimum = (1, 0)
    transaction_level = "SERIALIZABLE"
    update_returning = delete_returning = one_writer = True
    has_network = False

    @staticmethod
    def version_of(dialect):
        return (1, 2)


@compiles(utc_now, "invented")
def now(element, compiler, **kw):
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"
'''

ENTRY_POINTS = """
[sqlalchemy.dialects]
invented = invented:Dialect
[sa_jobqueue.databases]
invented = invented:Invented
"""

APPLICATION = """
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sa_jobqueue import JobMixin, JobQueue, count_by_status, enqueue
from sa_jobqueue.worker import Worker

class Base(DeclarativeBase): pass

class Email(JobMixin, Base):
    __tablename__ = "email"
    id: Mapped[int] = mapped_column(primary_key=True)

engine = create_engine("invented:///jobs.db")
Base.metadata.create_all(engine)
with Session(engine) as session:
    enqueue(session, Email, [{} for _ in range(5)])
    session.commit()
Worker(engine, JobQueue(Email), lambda job: None, drain=True).run()
with Session(engine) as session:
    print(count_by_status(session, Email)["done"])
"""


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the application beside what is installed in the folder."""
    path = {"PYTHONPATH": f"{folder}:{Path(__file__).parents[2]}", "PATH": ""}
    command = [sys.executable, "-c", APPLICATION]
    return subprocess.run(command, cwd=folder, env=path, capture_output=True, text=True)


def test_a_package_for_another_database_only_has_to_be_installed(tmp_path: Path) -> None:
    about = tmp_path / "invented-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: invented\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "invented.py").write_text(INVENTED)

    served = run(tmp_path)

    assert served.stdout.split() == ["5"], served.stderr
    dialect_alone = ENTRY_POINTS.partition("[sa_jobqueue")[0]
    (about / "entry_points.txt").write_text(dialect_alone)
    refused = run(tmp_path).stderr
    assert "does not know the database 'invented'" in refused
    assert "entry point 'invented' of the group 'sa_jobqueue.databases'" in refused


def test_the_doctor_refuses_a_database_that_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sa_jobqueue.databases.sqlite.SQLite.title", "Unheard")

    with pytest.raises(UnsupportedDatabase, match=r"plans of Unheard .* PostgreSQL, MySQL"):
        examine(create_engine("sqlite://"), Email)


CREATING = """
import sys
from sqlalchemy.engine.url import make_url
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.schema import CreateTable
from sa_jobqueue import JobMixin, ScheduleMixin

class Base(DeclarativeBase): pass

class Email(JobMixin, ScheduleMixin, Base):
    __tablename__ = "email"
    id: Mapped[int] = mapped_column(primary_key=True)

for name in ("postgresql", "mysql", "sqlite"):
    print(CreateTable(Email.__table__).compile(dialect=make_url(f"{name}://").get_dialect()()))
files = {"postgresql", "innodb", "sqlite", "sqlite_lock_files", "watched_connection"}
print("loaded", sorted(files & {name.rpartition(".")[2] for name in sys.modules if "jobq" in name}))
"""


def test_a_table_is_created_by_the_clock_of_a_database_whose_file_is_not_loaded() -> None:
    command = [sys.executable, "-c", CREATING]
    path = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""}

    created = subprocess.run(command, env=path, capture_output=True, text=True)

    for clock in ("statement_timestamp()", "UTC_TIMESTAMP(6)", "strftime("):
        assert f"DEFAULT ({clock}" in created.stdout.replace("DEFAULT s", "DEFAULT (s")
    assert created.stdout.rstrip().endswith("loaded []")
