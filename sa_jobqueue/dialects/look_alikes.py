"""Servers that answer as PostgreSQL, MySQL or MariaDB do, and are another product.

Such a server may parse FOR UPDATE SKIP LOCKED and lock nothing, as TiDB does, or lock in a way of
its own. So it is refused by name, until :func:`assume_locks` says that its locks hold.

A name cannot prove that locks hold: a server of an unknown name, or a proxy, may ignore them too.
A claim that marks counts what it has marked, and a held claim proves the locks of its table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakSet

from sqlalchemy.engine import Dialect

from ..errors import UnsupportedDatabase

#: Products that name themselves in version() or @@version_comment, whichever number they show.
_NAMES = (
    "ClickHouse",
    "Cloudberry",
    "CockroachDB",
    "Databend",
    "Dolt",
    "Doris",
    "Greenplum",
    "Materialize",
    "MemSQL",
    "OceanBase",
    "PlanetScale",
    "PolarDB-X",
    "QuestDB",
    "RisingWave",
    "SingleStore",
    "StarRocks",
    "TiDB",
    "Vitess",
    "YugabyteDB",
)
_NAMED = re.compile(rf"\b({'|'.join(_NAMES)})", re.IGNORECASE)

#: A version of its own behind that of the server whose place a product takes, as in
#: 8.0.11-TiDB-v8.5.6 and 15.12-YB-2.25. Packagers append numbers, or a word without a number.
_OWN_VERSION = re.compile(r"\d-(?!MariaDB)([A-Za-z]\w*)-v?\d")

#: Where the product ends in PostgreSQL's version(), and the compiler and its machine begin.
_BUILT = re.compile(r" on |,")

_SHORT = {"YB": "YugabyteDB", "TDDL": "PolarDB-X"}


class HasDialect(Protocol):
    """An Engine, an AsyncEngine or a Connection."""

    @property
    def dialect(self) -> Dialect:
        """What SQLAlchemy knows about the server."""
        ...


_assumed: WeakSet[Dialect] = WeakSet()


def assume_locks(engine: HasDialect) -> None:
    """Trust the row locks of an engine's server, whatever product it says that it is.

    For a server that is refused by name, once ``sa-jobqueue doctor --locks`` has shown that its
    locks hold. Held claims of this engine do not prove the locks any more. It belongs to the
    engine: call it beside ``create_engine()``, in each process.

    Args:
        engine: an Engine, an AsyncEngine, or a connection of one.
    """
    _assumed.add(engine.dialect)


def locks_are_assumed(dialect: Dialect) -> bool:
    """Tell whether :func:`assume_locks` was called for the engine of a dialect."""
    return dialect in _assumed


def refuse_look_alike(title: str, told: Sequence[str]) -> None:
    """Refuse a server that says that it is another product.

    Args:
        title: the database whose place the product would take.
        told: what the server says about itself, its version first.

    Raises:
        UnsupportedDatabase: names the product, and the way on.
    """
    product = look_alike(told)
    if product is not None:
        raise UnsupportedDatabase(
            f"this server says that it is {product} ({', '.join(told)}), and not {title}: "
            "sa_jobqueue does not know whether its row locks hold, and does not claim without row "
            "locks. Run `sa-jobqueue doctor --locks MODULE:QUEUE --url URL` to prove them. If they "
            "hold, call sa_jobqueue.assume_locks(engine), or give commands the option "
            "--assume-locks"
        )


def look_alike(told: Sequence[str]) -> str | None:
    """Return the name of a product that is neither PostgreSQL, MySQL nor MariaDB.

    Args:
        told: what the server says about itself, its version first.
    """
    named = _NAMED.search(" ".join(told))
    if named is not None:
        return next(name for name in _NAMES if name.lower() == named[1].lower())
    own = _OWN_VERSION.search(_BUILT.split(told[0])[0])
    return None if own is None else _SHORT.get(own[1], own[1])
