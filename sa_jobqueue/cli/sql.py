"""``sql``: the statements of a claim, printed without a connection."""

from __future__ import annotations

import re
from typing import Any

import click
from sqlalchemy import Executable, make_url
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import ClauseElement

from ..dialects import database_of_dialect
from ..queue import claim_statements
from .command import targets_argument, text
from .targets import load_queues

_EXPANDING = re.compile(r"(?P<open>\()?__\[POSTCOMPILE_(?P<name>\w+)\](?(open)\))")


@click.command()
@targets_argument
@text("--dialect", "postgresql, mysql, mariadb or sqlite.", required=True)
def sql(targets: tuple[str, ...], dialect: str) -> None:
    """Print the SQL that claims jobs, for the newest server."""
    made = _dialect_of(dialect)
    for queue in load_queues(targets).values():
        for statement in claim_statements(queue, dialect=made):
            click.echo(f"{_text_of(statement, made)};\n")


def _dialect_of(name: str) -> Dialect:
    """Return a dialect with named parameters; those of a driver would be %s or ?."""
    make: Any = make_url(f"{name}://").get_dialect()
    dialect: Dialect = make(paramstyle="named")
    # MySQL's dialect writes "FOR UPDATE OF" only once it has connected to a server that has it.
    if hasattr(dialect, "supports_for_update_of"):
        vars(dialect)["supports_for_update_of"] = database_of_dialect(dialect).lock_of
    return dialect


def _text_of(statement: Executable, dialect: Dialect) -> str:
    """Return the SQL, below comments with the parameters whose values are known."""
    assert isinstance(statement, ClauseElement)
    compiled = statement.compile(dialect=dialect)
    known = {key: value for key, value in (compiled.params or {}).items() if value is not None}
    comments = [f"-- :{key} = {value!r}\n" for key, value in known.items()]
    return "".join(comments) + _EXPANDING.sub(r"(:\g<name>)", str(compiled))
