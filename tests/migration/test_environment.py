"""The migrations in alembic/ lead up and down; and whoever begins the transactions may do so."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from alembic import command
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import URL, Engine, NullPool, inspect, text

from sa_jobqueue import ArgumentError, JobMixin
from sa_jobqueue.migration import (
    add_job_columns,
    backfill,
    create_job_indexes,
    patiently,
    tune_storage,
)
from tests.migration.support import (
    MIXINS,
    ORDERS,
    SERVERS,
    alembic_config,
    claimed,
    column_names,
    execute,
    index_names,
    insert_orders,
    migrating,
    scalar,
)
from tests.support import SQLITE, make_engine

VERSIONS = "example_alembic_version"


def tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names())


def test_the_migrations_lead_up_and_down_and_up_to_what_the_models_say(
    fresh_database: URL, engine: Engine
) -> None:
    config = alembic_config(fresh_database)
    theirs = {"invoices", "alembic_version"}  # which are left alone
    execute(
        engine,
        "CREATE TABLE invoices (id INTEGER PRIMARY KEY)",
        "CREATE TABLE alembic_version (version_num VARCHAR(32))",
        "INSERT INTO alembic_version VALUES ('theirs')",
    )
    command.upgrade(config, "0003")
    before = column_names(engine, "example_order")

    command.upgrade(config, "head")

    command.check(config)  # raises if a difference is left
    assert tables(engine) > {"example_order", VERSIONS, *theirs}

    command.downgrade(config, "0003")

    assert column_names(engine, "example_order") == before
    assert index_names(engine, "example_order") == set()

    command.downgrade(config, "base")

    assert tables(engine) == {VERSIONS, *theirs}

    command.upgrade(config, "head")

    command.check(config)
    assert scalar(engine, "SELECT version_num FROM alembic_version") == "theirs"


@pytest.mark.only_on(*SERVERS)
def test_the_script_builds_what_the_migrations_build(
    fresh_database: URL, engine: Engine, db_alias: str
) -> None:
    said = io.StringIO()
    command.upgrade(alembic_config(SERVERS[db_alias], said=said), "base:head", sql=True)

    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in statements_of(said.getvalue()):
            connection.exec_driver_sql(statement)

    command.check(alembic_config(fresh_database))


def statements_of(script: str) -> list[str]:
    """Split a script into statements as the servers' clients do."""
    lines = [line for line in script.splitlines() if not line.startswith("--")]
    parts = re.split(r";\s*\n", "\n".join(lines) + "\n")
    return [part.strip().replace("%", "%%") for part in parts if part.strip()]


BOTH = {"ix_orders_claim", "ix_orders_reap"}


@contextmanager
def environment_that_reads_first(engine: Engine) -> Iterator[Operations]:
    """An env.py that runs a SET or a SELECT, configures, migrates, and commits at its end."""
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        context = MigrationContext.configure(connection, opts={"transaction_per_migration": True})
        with context.begin_transaction():
            op = Operations(context)
            op.get_bind().commit()
            yield op
        connection.commit()


ON_SQLITE = pytest.mark.only_on("sqlite")
SINCE_312 = pytest.mark.skipif(sys.version_info < (3, 12), reason="new in Python 3.12")


@pytest.mark.parametrize(
    ("environment", "begin"),
    [
        (environment_that_reads_first, "driver"),
        (migrating, "driver"),
        pytest.param(migrating, "listener", marks=ON_SQLITE),
        pytest.param(migrating, "autocommit", marks=[ON_SQLITE, SINCE_312]),
    ],
)
def test_a_table_becomes_a_queue_whoever_begins_its_transactions(
    fresh_database: URL, monkeypatch: pytest.MonkeyPatch, environment: Any, begin: str
) -> None:
    monkeypatch.setitem(SQLITE, "begin", begin)
    shop = make_engine(fresh_database, poolclass=NullPool)
    ORDERS.create(shop)
    insert_orders(shop, range(3))

    with environment(shop) as op:
        add_job_columns(op, "orders", *MIXINS, existing_rows="amount = 1")
        create_job_indexes(op, "orders", *MIXINS)
        backfill(op, "orders", "amount = 2", values={"note": "old"})
        patiently(op, lambda: op.create_index("ix_note", "orders", ["note"]))
        tune_storage(op, "orders")
        op.execute(text("INSERT INTO orders (amount, attempts) VALUES (7, 0)"))  # committed, too

    assert index_names(shop) == {*BOTH, "ix_note"}
    assert claimed(shop) == [1, 7]
    assert scalar(shop, "SELECT count(*) FROM orders WHERE note = 'old'") == 1


def test_inside_a_transaction_of_others_a_connection_of_its_own_serves(shop: Engine) -> None:
    insert_orders(shop, range(3))
    with shop.begin() as around:
        op = Operations(MigrationContext.configure(around))
        op.execute(text("SELECT 1"))
        with pytest.raises(ArgumentError, match=r"op\.get_bind\(\)\.commit\(\).*op.create_index"):
            add_job_columns(op, "orders", JobMixin, existing_rows="done")

        with op.get_bind().engine.connect() as connection:
            own = Operations(MigrationContext.configure(connection))
            add_job_columns(own, "orders", JobMixin, existing_rows="amount = 1")
            create_job_indexes(own, "orders", JobMixin)

        op.execute(text("INSERT INTO orders (amount) VALUES (7)"))

    assert index_names(shop) == BOTH
    assert scalar(shop, "SELECT count(*) FROM orders WHERE status = 'unclaimed'") == 2


@pytest.mark.only_on("postgresql")
def test_a_statement_timeout_of_the_environment_does_not_end_an_index_build(queue: Engine) -> None:
    with queue.connect() as blocker, queue.connect() as connection:
        connection.execute(text("SET statement_timeout = '300ms'"))
        connection.commit()
        blocker.execute(text("INSERT INTO orders (amount, attempts) VALUES (1, 0)"))
        context = MigrationContext.configure(connection, opts={"transaction_per_migration": True})

        def end_later() -> None:
            time.sleep(1)
            blocker.commit()

        ender = threading.Thread(target=end_later)
        ender.start()
        with context.begin_transaction(_per_migration=True):
            create_job_indexes(Operations(context), "orders", *MIXINS)
        ender.join()
        kept = connection.execute(text("SHOW statement_timeout")).scalar()

    assert index_names(queue) == BOTH
    assert kept == "300ms"
