"""The migrations in alembic/ create the examples' tables, and drop them again."""

from __future__ import annotations

import io
import re

import pytest
from alembic import command
from sqlalchemy import URL, Engine, inspect

from tests.migration.support import (
    SERVERS,
    alembic_config,
    column_names,
    execute,
    index_names,
    scalar,
)

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
