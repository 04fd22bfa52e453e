"""Statements that are built once for each owner and database, and freed with either.

The owner is what the statements are built for: a mapped class, a queue or its claim plan.
The statements are kept in the owner, under the dialect of the engine. If the application drops
a class, a queue or an engine, its statements are freed with it. `lru_cache` would keep all of
them alive. A WeakKeyDictionary of owners would, too, because statements refer to their owner.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy.engine import Dialect

from ..dialects.registry import ByDialect
from .writer import Writer

Owner = TypeVar("Owner")
P = ParamSpec("P")
R = TypeVar("R")

#: The most entries for one owner and one dialect; a full cache is emptied.
MOST = 1_000

_KEPT = "_sa_jobqueue_built"


def built_once(
    build: Callable[Concatenate[Owner, Writer, P], R],
) -> Callable[Concatenate[Owner, Writer, P], R]:
    """Call a function once for each owner, dialect and further arguments.

    Its result may refer to the owner and the database, but neither to the dialect nor to the
    writer.
    """

    @wraps(build)
    def built(owner: Owner, writer: Writer, /, *args: P.args, **named: P.kwargs) -> R:
        key = (build, args, *named.items()) if named else (build, args)
        dialect = writer.connection.dialect
        try:
            found: R = vars(owner)[_KEPT].values[id(dialect)][key]
        except KeyError:
            kept = _kept(owner, dialect)
            if len(kept) >= MOST:
                kept.clear()
            found = kept.setdefault(key, build(owner, writer, *args, **named))
        return found

    return built


def _kept(owner: Any, dialect: Dialect) -> dict[Any, Any]:
    by_dialect: ByDialect[dict[Any, Any]] = vars(owner).setdefault(_KEPT, ByDialect())
    return by_dialect.setdefault(dialect, {})
