"""The model and the statements of docs/partitions.md, in a project of Alembic's own making."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import URL, Engine, insert, inspect, text
from sqlalchemy.orm import Session

from sa_jobqueue import claim, complete
from sa_jobqueue.migration import patiently
from tests.support import SERVERS, make_engine

from .markdown import code_blocks, page, table

PAGE = page("docs/partitions.md")

#: What a user writes into env.py, but for the import of the models.
TARGET = "target_metadata = config.attributes['metadata']"


def written(when: str, db_alias: str) -> list[str]:
    """Return the statements of a line of the page."""
    (line,) = (line for line in table(PAGE, "partitions") if line["partitions"] == when)
    cell = line["PostgreSQL" if db_alias == "postgresql" else "MySQL, MariaDB"]
    return [code for code in re.findall("`([^`]+)`", cell) if " " in code]


def autogenerate(folder: Path, url: URL, metadata: Any) -> str:
    """Have Alembic write a migration for the models, and run it; return its text."""
    config = Config(str(folder / "alembic.ini"), attributes={"metadata": metadata})
    command.init(config, str(folder / "migrations"))
    environment = folder / "migrations" / "env.py"
    environment.write_text(environment.read_text().replace("target_metadata = None", TARGET))
    config.config_file_name = None  # env.py would set up the logging of all tests
    config.set_main_option("script_location", str(folder / "migrations"))
    shown = url.render_as_string(hide_password=False)
    config.set_main_option("sqlalchemy.url", shown.replace("%", "%%"))
    revision = command.revision(config, autogenerate=True)
    command.upgrade(config, "head")
    return Path(revision.path).read_text()  # type: ignore[union-attr]  # a single script, as asked for


def run(engine: Engine, statements: list[str]) -> None:
    """Run statements as the page says."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"transaction_per_migration": True})
        with context.begin_transaction(_per_migration=True):
            op = Operations(context)
            for statement in statements:
                patiently(op, execute(op, statement))


def execute(op: Operations, statement: str) -> Callable[[], None]:
    return lambda: op.execute(statement)


def add(engine: Engine, report: Any, *days: int) -> None:
    with engine.begin() as connection:
        for day in days:
            connection.execute(insert(report), {"day": date(2030, 1, day)})


@pytest.mark.only_on(*SERVERS)
def test_days_are_made_added_and_dropped_as_the_page_says(
    fresh_database: URL, db_alias: str, tmp_path: Path
) -> None:
    models: dict[str, Any] = {"__name__": "models"}
    code = compile(code_blocks(PAGE, "python")[0], "models.py", "exec", dont_inherit=True)
    exec(code, models)
    report, engine = models["Report"], make_engine(fresh_database)

    migration = autogenerate(tmp_path, fresh_database, models["Base"].metadata)
    run(engine, written("the first days", db_alias))
    add(engine, report, 1, 2)
    run(engine, written("add a day", db_alias))
    add(engine, report, 3)

    assert "_partition_by=" in migration
    assert "sa_jobqueue" not in migration
    with Session(engine, expire_on_commit=False) as session:
        jobs = claim(session, report, owner="w", limit=2)
        complete(session, jobs)
        session.commit()
        run(engine, written("drop a day", db_alias))
        assert [job.day.day for job in claim(session, report, owner="w", limit=9)] == [3]
    if db_alias == "postgresql":
        assert {index["name"] for index in inspect(engine).get_indexes("report_d3")} == {
            "report_d3_status_id_day_idx",
            "report_d3_status_owner_date_idx",
        }
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT COUNT(*) FROM report")) == 2
    engine.dispose()
