"""The time of a claim: SQLite's clock, with three digits behind its milliseconds.

The clock of SQLite counts milliseconds, and threads that share an owner's name make several
claims in one. Had two of them the same time, the fence of a claim that was rolled back would
fit the claim that came after it. So the digits count the claims of a process. They repeat
after a thousand claims, which take longer than a millisecond. Each process begins with
another number.
"""

from __future__ import annotations

import os
from datetime import datetime
from itertools import count
from random import SystemRandom
from typing import Any

from sqlalchemy import ColumnElement, DateTime, String, bindparam, literal_column
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

#: The format of a time that SQLAlchemy stores, without the last three of its six digits.
MILLISECONDS: ColumnElement[str] = literal_column("'%Y-%m-%d %H:%M:%f'")

_NUMBERS = 1_000

_numbers = count()


def _start() -> None:
    global _numbers
    _numbers = count(SystemRandom().randrange(_NUMBERS))


_start()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start)


def _digits() -> str:
    return f"{next(_numbers) % _NUMBERS:03d}"


class _ClaimDate(FunctionElement[datetime]):
    name = "claim_date"
    inherit_cache = True
    type: Any = DateTime(timezone=True)


def claim_date() -> ColumnElement[Any]:
    """Return the time of a claim, with other digits for each execution."""
    digits = bindparam("sa_jobqueue_digits", callable_=_digits, type_=String)
    return _ClaimDate(digits)


@compiles(_ClaimDate, "sqlite")
def _milliseconds_and_digits(element: _ClaimDate, compiler: Any, **kw: Any) -> str:
    digits = compiler.process(element.clauses, **kw)
    return f"(strftime({compiler.process(MILLISECONDS)}, 'now') || {digits})"
