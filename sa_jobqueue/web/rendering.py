"""Templates, how they write times, numbers, keys and plots, and transactions that read.

Everything is escaped, and each statement has a time limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import HTMLResponse

from ..ages import age_text
from ..dialects import database_of
from ..dialects.clock import as_utc
from ..model.columns import first_line
from ..steering import Key, key_text

#: Stands where there is no value.
UNKNOWN = "\u2013"

#: Characters of a value that a page shows.
SHOWN = 2_000


@dataclass(frozen=True)
class Plot:
    """Samples as a line in a box of SVG.

    Attributes:
        line, area: points of a polyline, and of the polygon beneath it.
        most: the largest value.
    """

    width: int
    height: int
    line: str
    area: str
    most: float


def plot(values: Sequence[float], width: int, height: int) -> Plot | None:
    """Lay out values from left to right; None: a line needs two of them."""
    if len(values) < 2:
        return None
    most, step = max(values), width / (len(values) - 1)
    heights = (height - 1 - (value * (height - 2) / most if most else 0) for value in values)
    line = " ".join(f"{index * step:.1f},{high:.1f}" for index, high in enumerate(heights))
    return Plot(width, height, line, f"0,{height} {line} {width},{height}", most)


class Links:
    """Addresses of the site's pages, below the path where the application is mounted."""

    def __init__(self, request: Request) -> None:
        self._root = quote(request.scope.get("root_path", "").rstrip("/"), safe="/:,@")

    def __call__(self, *parts: str) -> str:
        """Return the address of a page, such as ``queues`` and a queue's name."""
        return "/".join((self._root, *(quote(part, safe=":,@") for part in parts)))

    def queue(self, name: str) -> str:
        """Return the address of a queue."""
        return self("queues", name)

    def job(self, name: str, key: Key) -> str:
        """Return the address of a job."""
        return self("queues", name, "jobs", in_path(key_text(key)))


def in_path(text: str) -> str:
    """Write a text as a single step of a path: without a slash, and not as ``..``.

    A percent sign is replaced too, since some proxies decode a path twice.
    """
    step = text.replace("~", "~0").replace("/", "~1").replace("%", "~3")
    return step.replace(".", "~2") if step in (".", "..") else step


def from_path(text: str) -> str:
    """Read what :func:`in_path` has written."""
    return text.replace("~3", "%").replace("~2", ".").replace("~1", "/").replace("~0", "~")


def page(template: str, values: Mapping[str, Any], *, status: int = 200) -> HTMLResponse:
    """Render a page."""
    text = _environment().get_template(f"{template}.html").render(values)
    return HTMLResponse(text, status_code=status)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("sa_jobqueue.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "age": partial(age_text, unknown=UNKNOWN),
        "moment": moment_text,
        "rate": rate_text,
        "key": key_text,
        "first_line": first_line,
        "value": value_text,
        "plural": plural,
    }
    made.globals["until"] = until_text
    return made


def until_text(moment: datetime | None) -> str:
    """Write how long it is until a moment."""
    return age_text(None if moment is None else as_utc(moment) - datetime.now(UTC), UNKNOWN)


def moment_text(moment: datetime | None) -> str:
    """Write a time in UTC, to the second."""
    return UNKNOWN if moment is None else f"{as_utc(moment):%Y-%m-%d %H:%M:%S}"


def rate_text(rate: float | None) -> str:
    """Write a number for each second, with two digits where it is small."""
    if not rate:
        return UNKNOWN
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def value_text(value: Any) -> str:
    """Write the value of a column; a long one is cut."""
    text = repr(value) if isinstance(value, bytes) else str(value)
    if len(text) <= SHOWN:
        return text
    return f"{text[:SHOWN]}… ({len(text) - SHOWN:,} more characters)"


def plural(count: int, word: str) -> str:
    """Write a number of things: ``1 job``, ``2 jobs``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


#: How long a statement may take.
TIME_LIMIT = timedelta(seconds=5)


@contextmanager
def reading(engine: Engine) -> Iterator[Session]:
    """Give a session for reads, in no transaction yet; it is rolled back at the end.

    Raises:
        DBAPIError: the database is away, or a statement took longer than TIME_LIMIT.
    """
    with engine.connect() as connection, ExitStack() as limits:
        database = database_of(connection)
        in_autocommit = database.in_autocommit(connection)
        connection.rollback()  # the level of a transaction is set before it begins
        if in_autocommit:
            connection.execution_options(isolation_level=database.transaction_level)
        with Session(connection) as session:

            @event.listens_for(session, "after_begin")
            def limit_time(_session: Session, _transaction: object, begun: Connection) -> None:
                limits.enter_context(database.time_limit(begun, TIME_LIMIT))

            yield session
