"""What the tests of migrations share: a table with history, and Alembic's op for it."""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, PriorityMixin, RetryMixin, ScheduleMixin, claim
from sa_jobqueue.migration import (
    add_job_columns,
    create_job_indexes,
    drop_job_columns,
    drop_job_indexes,
)
from tests.support import heard

ROOT = Path(__file__).parents[2]

#: The table before it becomes a queue.
ORDERS = Table(
    "orders",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("amount", Integer, nullable=False),
    Column("note", String(50)),
)

#: URLs that name a dialect and no server.
SERVERS = {
    "postgresql": "postgresql+psycopg2://",
    "mysql": "mysql+pymysql://",
    "mariadb": "mariadb+pymysql://",
}


class Base(DeclarativeBase):
    """The base of the finished models."""


class Order(JobMixin, PriorityMixin, ScheduleMixin, RetryMixin, Base):
    """An order of the finished queue."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]
    note: Mapped[str | None] = mapped_column(String(50))


MIXINS = (JobMixin, PriorityMixin, ScheduleMixin, RetryMixin)


@contextmanager
def migrating(engine: Engine, **opts: Any) -> Iterator[Operations]:
    """Give Alembic's op, in a transaction as its env.py would begin it."""
    with engine.connect() as connection, in_context(connection, **opts) as op:
        yield op


@contextmanager
def in_context(connection: Connection, **opts: Any) -> Iterator[Operations]:
    context = MigrationContext.configure(
        connection, opts={"transaction_per_migration": True, **opts}
    )
    with context.begin_transaction(_per_migration=True):
        yield Operations(context)


@contextmanager
def writing_script(engine_name: str) -> Iterator[tuple[Operations, io.StringIO]]:
    """Give an op that writes SQL, as --sql does."""
    script = io.StringIO()
    context = MigrationContext.configure(
        url=SERVERS.get(engine_name, f"{engine_name}://"),
        opts={"as_sql": True, "output_buffer": script, "transaction_per_migration": True},
    )
    with context.begin_transaction(_per_migration=True):
        yield Operations(context), script


def insert_orders(engine: Engine, amounts: range | list[int]) -> list[int]:
    """Insert orders of these amounts; return their ids."""
    with engine.begin() as connection:
        connection.execute(insert(ORDERS), [{"amount": amount} for amount in amounts])
        found = connection.scalars(select(ORDERS.c.id).order_by(ORDERS.c.id))
        return list(found)[-len(amounts) :]


class Broken(Exception):
    """The error that interrupts a migration."""


def breaks_at(
    engine: Engine, stop: int, run: Callable[[], object], *, before: tuple[str, ...]
) -> bool:
    """Interrupt a migration before its n-th statement; tell whether there was such a statement."""
    left = [stop]

    def count(connection: Connection, cursor: Any, statement: str, *args: Any) -> None:
        if statement.startswith(before):
            left[0] -= 1
            if left[0] == 0:
                raise Broken

    with heard(engine, "before_cursor_execute", count):
        try:
            run()
        except Broken:
            return True
    return False


def statuses(engine: Engine, column: str = "status") -> dict[int, str]:
    """Return each order's status, by its amount."""
    with engine.connect() as connection:
        rows = connection.execute(text(f"SELECT amount, {column} FROM orders"))
        return {row[0]: row[1] for row in rows}


def column_names(engine: Engine, table: str = "orders") -> list[str]:
    return [column["name"] for column in inspect(engine).get_columns(table)]


def index_names(engine: Engine, table: str = "orders") -> set[str | None]:
    return {index["name"] for index in inspect(engine).get_indexes(table)}


def alembic_config(url: URL | str, *, said: io.StringIO | None = None) -> Config:
    """Make the configuration of this project's own environment, for one database."""
    said = said or io.StringIO()
    config = Config(
        ROOT / "alembic.ini",
        stdout=said,
        output_buffer=said,
        attributes={"configure_logging": False},
    )
    written = url if isinstance(url, str) else url.render_as_string(hide_password=False)
    config.cmd_opts = Namespace(x=[f"url={written}"])
    return config


def scalar(bind: Engine | Connection, statement: str) -> Any:
    if isinstance(bind, Engine):
        with bind.connect() as connection:
            return scalar(connection, statement)
    return bind.execute(text(statement)).scalar()


def notes(engine: Engine) -> int:
    """Count the orders with the note of a backfill."""
    found: int = scalar(engine, "SELECT COUNT(*) FROM orders WHERE note = 'old'")
    return found


def migrate(engine: Engine, call: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Run a migration of one call; return what it returns."""
    with migrating(engine) as op:
        return call(op, *given, **options)


def adopt(engine: Engine, existing_rows: Any, *mixins: Any, **options: Any) -> None:
    """Add the columns of a queue."""
    given = {"existing_rows": existing_rows, **options}
    migrate(engine, add_job_columns, "orders", *(mixins or MIXINS), **given)


def make_queue(engine: Engine, existing_rows: Any, *mixins: Any, table: Any = "orders") -> None:
    """Add the columns and the indexes of a queue."""
    mixins = mixins or (MIXINS if table == "orders" else ())
    migrate(engine, add_job_columns, table, *mixins, existing_rows=existing_rows)
    migrate(engine, create_job_indexes, table, *mixins)


def unmake_queue(engine: Engine, table: Any = "orders") -> None:
    """Drop what make_queue() has made."""
    migrate(engine, drop_job_indexes, table)
    migrate(engine, drop_job_columns, table, *(MIXINS if table == "orders" else ()))


def execute(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def differences(engine: Engine, metadata: MetaData) -> list[Any]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        return list(compare_metadata(context, metadata))


def claimed(engine: Engine, entity: Any = Order) -> list[int]:
    with Session(engine) as session:
        jobs = claim(session, entity, owner="worker", limit=100)
        session.commit()
        return sorted(job.amount for job in jobs)


def columns_of(engine: Engine, index: str, table: str = "orders") -> list[str | None]:
    found = {each["name"]: each for each in inspect(engine).get_indexes(table)}
    return found[index]["column_names"]
