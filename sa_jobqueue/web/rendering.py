"""Templates, and how they write times, numbers, keys and plots. Everything is escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any
from urllib.parse import quote, unquote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from ..ages import age_text, count_text, rate_text, rough_text, time_text
from ..databases.clock import as_utc
from ..model.columns import first_line
from ..steering import Key, key_text

#: Stands where there is no value.
UNKNOWN = "\u2013"

#: Where nothing was seen for so many seconds, a plot has a gap.
GAP = 60.0

#: Characters of a value that a page shows.
SHOWN = 2_000


@dataclass(frozen=True)
class Plot:
    """Samples as lines in a box of SVG: the right edge is now.

    Attributes:
        lines: points of polylines, each without a gap; areas: of the polygons beneath them.
        most: the largest value.
    """

    width: int
    height: int
    lines: list[str]
    areas: list[str]
    most: float


def plot(
    points: Sequence[tuple[float, float | None]], width: int, height: int, *, span: float
) -> Plot | None:
    """Lay out values by their ages in seconds, the oldest first; None: a line needs two of them.

    Args:
        span: the age at the left edge.
    """
    parts: list[list[tuple[float, float]]] = [[]]
    last = span
    for age, value in points:
        if value is None or last - age > GAP:
            parts.append([])
        if value is not None:
            parts[-1].append((age, value))
        last = age
    drawn = [part for part in parts if len(part) > 1]
    if not drawn:
        return None
    most, lines, areas = max(value for part in drawn for _, value in part), [], []
    for part in drawn:
        places = [
            (width * (1 - age / span), height - 1 - value * (height - 2) / (most or 1))
            for age, value in part
        ]
        lines.append(" ".join(f"{x:.1f},{y:.1f}" for x, y in places))
        areas.append(f"{places[0][0]:.1f},{height} {lines[-1]} {places[-1][0]:.1f},{height}")
    return Plot(width, height, lines, areas, most)


@dataclass(frozen=True)
class Links:
    """Addresses of the site's pages, below the path where the application is mounted.

    Attributes:
        root: this path.
        several: whether the site has several databases by name.
        database: the name of the one that the pages are of; empty: of all, or there is only one.
    """

    root: str
    several: bool
    database: str = ""

    @classmethod
    def of(cls, request: Request) -> Links:
        """Return the addresses beside that of a request."""
        root = quote(request.scope.get("root_path", "").rstrip("/"), safe="/:,@")
        database = request.path_params.get("database", "")
        return cls(root, "" not in request.app.state.sites, database)

    def within(self, database: str) -> Links:
        """Return the addresses of a database's pages, or of all databases together."""
        return replace(self, database=database)

    def __call__(self, *parts: str) -> str:
        """Return the address of a page, such as ``queues`` and a queue's name."""
        steps = (self.database, *parts) if self.database else parts
        return "/".join((self.root, *(quote(part, safe=":,@") for part in steps)))

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


def in_field(text: object) -> str:
    """Write a text for the field of a form: browsers send a line break as two characters."""
    return re.sub("[%\r\n]", lambda found: quote(found[0]), str(text))


def from_field(text: str) -> str:
    """Read what :func:`in_field` has written."""
    return unquote(text)


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
        "ago": ago,
        "moment": partial(time_text, unknown=UNKNOWN),
        "rate": partial(rate_text, unknown=UNKNOWN),
        "key": key_text,
        "field": in_field,
        "first_line": first_line,
        "value": value_text,
        "plural": count_text,
    }
    made.globals["until"] = until_text
    return made


def until_text(moment: datetime | None) -> str:
    """Write how long it is until a moment."""
    return age_text(None if moment is None else as_utc(moment) - datetime.now(UTC), UNKNOWN)


def ago(moment: datetime | None) -> Markup:
    """Write how long ago a time was, or how soon it is; a pointer shows the time itself."""
    if moment is None:
        return Markup(UNKNOWN)
    passed = datetime.now(UTC) - as_utc(moment)
    text = f"{rough_text(passed)} ago" if passed >= timedelta(0) else f"in {rough_text(-passed)}"
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        as_utc(moment).isoformat(timespec="seconds"), time_text(moment), text
    )


def value_text(value: Any) -> str:
    """Write the value of a column; a long one is cut."""
    text = repr(value) if isinstance(value, bytes) else str(value)
    if isinstance(value, dict | list):
        text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if len(text) <= SHOWN:
        return text
    return f"{text[:SHOWN]}… ({len(text) - SHOWN:,} more characters)"
