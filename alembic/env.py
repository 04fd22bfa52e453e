"""Run the migrations of the examples' tables: alembic -x url=... upgrade head."""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from logging.config import fileConfig
from pathlib import Path
from types import ModuleType
from typing import Any

from alembic import context
from alembic.util import CommandError
from sqlalchemy import URL, MetaData, NullPool, create_engine, make_url

from sa_jobqueue.migration import online_indexes

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"

#: Models with tables in every database. Example 04 has no table, and 06 makes its own tables.
MODELS = (
    EXAMPLES / "01_batches.py",
    EXAMPLES / "02_text_messages.py",
    EXAMPLES / "03_own_status_words.py",
    EXAMPLES / "07_two_mailings.py",
    EXAMPLES / "09_bulk_load.py",
    EXAMPLES / "uuid_keys.py",
    HERE / "orders.py",
    EXAMPLES / "08_render_pipeline.py",
)

#: Models with tables in some databases: the mailing's index has an expression that only
#: PostgreSQL reads, and SQLite has no partitions.
MODELS_ON = {
    "postgresql": (EXAMPLES / "05_mailing.py", EXAMPLES / "partitioned.py"),
    "mysql": (EXAMPLES / "partitioned.py",),
    "mariadb": (EXAMPLES / "partitioned.py",),
}

#: The name differs from alembic_version, since the database may have migrations of its own.
VERSION_TABLE = "example_alembic_version"


def url() -> URL:
    """Return the URL of ``-x url=``, or else of SA_JOBQUEUE_URL."""
    given = context.get_x_argument(as_dictionary=True).get("url")
    found = given or os.environ.get("SA_JOBQUEUE_URL")
    if not found:
        raise CommandError(
            "no database is given: alembic -x url=postgresql+psycopg2://user@host/database ..., "
            "or set SA_JOBQUEUE_URL"
        )
    return make_url(found)


def load(file: Path) -> ModuleType:
    """Import a file by its path, since 01_batches is no name of a module.

    sys.path stays as it is.
    """
    name = f"migrated_{file.stem}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def metadata(backend: str) -> list[MetaData]:
    """Return the tables that such a database has, by the name of its backend."""
    return [load(file).Base.metadata for file in (*MODELS, *MODELS_ON.get(backend, ()))]


def configure(**connected: Any) -> None:
    """Configure Alembic, and run the migrations."""
    compared = metadata(url().get_backend_name())
    tables = {table.name for collection in compared for table in collection.tables.values()}

    def is_ours(name: str | None, type_: str, parents: object) -> bool:
        # Other tables are left out; autogenerate would drop them.
        return type_ != "table" or name in tables

    context.configure(
        target_metadata=compared,
        compare_server_default=True,
        include_name=is_ours,
        # The functions of sa_jobqueue.migration commit by themselves.
        transaction_per_migration=True,
        process_revision_directives=online_indexes,
        version_table=VERSION_TABLE,
        **connected,
    )
    with context.begin_transaction():
        context.run_migrations()


# A caller from Python may keep its own logging.
if context.config.config_file_name and context.config.attributes.get("configure_logging", True):
    fileConfig(context.config.config_file_name, disable_existing_loggers=False)

if context.is_offline_mode():
    configure(
        url=url().render_as_string(hide_password=False),
        literal_binds=True,
        dialect_opts={"paramstyle": "named"},
    )
else:
    with create_engine(url(), poolclass=NullPool).connect() as connection:
        configure(connection=connection)
