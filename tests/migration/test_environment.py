"""The migrations in alembic/ create the examples' tables, and drop them again."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.util import CommandError
from sqlalchemy import URL, Engine, inspect

from tests.migration.support import (
    ROOT,
    SERVERS,
    alembic_config,
    column_names,
    execute,
    index_names,
    scalar,
)

TABLES = {
    "example_batches_email",
    "example_bulk_customer",
    "example_text_message",
    "example_letter",
    "example_order",
    "example_uuid_order",
    "example_clip",
    "example_clip_log",
    "example_subscriber",
    "example_subscriber_rounds",
    "example_subscriber_mail",
}
DAYS = {f"example_report_d010{day}" for day in (1, 2, 3)}  # on PostgreSQL a table for each
TABLES_ON = {
    "sqlite": TABLES,
    "postgresql": TABLES | {"example_mailing_subscription", "example_report"} | DAYS,
    "mysql": TABLES | {"example_report"},
    "mariadb": TABLES | {"example_report"},
}
VERSIONS = "example_alembic_version"


@pytest.fixture(autouse=True)
def _no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SA_JOBQUEUE_URL", raising=False)


def tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names())


def test_the_migrations_lead_up_and_down_and_up_to_what_the_models_say(
    fresh_database: URL, engine: Engine, db_alias: str
) -> None:
    config = alembic_config(fresh_database)
    theirs = {"invoices", "alembic_version"}  # which are left alone
    expected = {*TABLES_ON[db_alias], VERSIONS, *theirs}
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
    assert tables(engine) == expected

    command.downgrade(config, "0003")

    assert column_names(engine, "example_order") == before
    assert index_names(engine, "example_order") == set()

    command.downgrade(config, "base")

    assert tables(engine) == {VERSIONS, *theirs}

    command.upgrade(config, "head")

    command.check(config)
    assert tables(engine) == expected
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


def test_the_error_without_a_url_tells_how_to_give_one() -> None:
    config = alembic_config("")

    with pytest.raises(CommandError, match=r"-x url=.*SA_JOBQUEUE_URL"):
        command.upgrade(config, "head")


def test_the_command_runs_from_anywhere_with_the_url_from_the_environment(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

    finished = subprocess.run(
        [sys.executable, "-m", "alembic", "-c", str(ROOT / "alembic.ini"), "upgrade", "head"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "SA_JOBQUEUE_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr
    assert "0003 -> 0004" in finished.stderr
    assert (tmp_path / "shop.db").exists()
