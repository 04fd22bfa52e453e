"""``sql``: the statements of a claim, printed without a connection."""

from __future__ import annotations

import re
from typing import Any

import click
from sqlalchemy import Executable, make_url
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import ClauseElement

from ..dialects import database_of_dialect
from ..queue import JobQueue, claim_statements
from ..strategies import AUTO, STRATEGIES
from .options import queue_argument
from .targets import load_queue

_EXPANDING = re.compile(r"(?P<open>\()?__\[POSTCOMPILE_(?P<name>\w+)\](?(open)\))")

#: Lines break before the keywords. Quoted text is matched, so that it stays as it is, and
#: parentheses, since they indent.
_TOKEN = re.compile(
    r"(?P<quoted>'[^']*')"
    r"|(?P<open>\()\s*"
    r"|(?P<close>\s*\))"
    r"|(?P<line>\s+)(?=(?:SELECT|SET|FROM|WHERE|ORDER BY|LIMIT|FOR (?:NO KEY )?UPDATE|RETURNING)\b)"
    r"|(?P<space>\s+)"
)


@click.command()
@queue_argument
@click.option(
    "--dialect", "name", required=True, metavar="NAME", help="postgresql, mysql, mariadb or sqlite."
)
@click.option(
    "--strategy",
    type=click.Choice([AUTO, *STRATEGIES]),
    help="Claim by this strategy instead of the queue's own.",
)
def sql(queue: str, name: str, strategy: str | None) -> None:
    """Print the SQL that claims jobs of MODULE:QUEUE.

    MODULE:QUEUE names a JobQueue or a mapped class. The SQL is for the newest server.
    """
    found = load_queue(queue)
    if strategy is not None:
        found = with_strategy(found, strategy)
    dialect = dialect_of(name)
    for statement in claim_statements(found, dialect=dialect):
        click.echo(f"{text_of(statement, dialect)};\n")


def dialect_of(name: str) -> Dialect:
    """Return a dialect with named parameters; those of a driver would be %s or ?."""
    make: Any = make_url(f"{name}://").get_dialect()
    dialect: Dialect = make(paramstyle="named")
    # MySQL's dialect writes "FOR UPDATE OF" only once it has connected to a server that has it.
    if hasattr(dialect, "supports_for_update_of"):
        vars(dialect)["supports_for_update_of"] = database_of_dialect(dialect).lock_of
    return dialect


def with_strategy(queue: JobQueue[object], strategy: str) -> JobQueue[object]:
    """Return the same queue, claimed by another strategy."""
    spec = queue.plan.spec
    return JobQueue(
        queue.entity,
        *spec.where,
        order_by=spec.order_by,
        ready=spec.ready,
        during=spec.during,
        strategy=strategy,
    )


def text_of(statement: Executable, dialect: Dialect) -> str:
    """Return the SQL, below comments with the parameters whose values are known."""
    assert isinstance(statement, ClauseElement)
    compiled = statement.compile(dialect=dialect)
    known = {key: value for key, value in (compiled.params or {}).items() if value is not None}
    comments = [f"-- :{key} = {value!r}\n" for key, value in known.items()]
    return "".join(comments) + pretty(_EXPANDING.sub(r"(:\g<name>)", str(compiled)))


def pretty(sql: str) -> str:
    """Start each clause on a new line, indented by the parentheses around it."""
    depth = 0

    def laid_out(token: re.Match[str]) -> str:
        nonlocal depth
        depth += bool(token["open"]) - bool(token["close"])
        if token["line"]:
            return "\n" + "  " * depth
        return " " if token["space"] else token[0].strip()

    return _TOKEN.sub(laid_out, sql.strip())
