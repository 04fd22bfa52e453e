"""One file for each way to claim; :func:`choose` picks the way for a queue and a database.

To add a strategy, subclass :class:`Strategy`, and add it to the list of STRATEGIES.
"""

from __future__ import annotations

from ..dialects import Database
from ..errors import ArgumentError, UnsupportedDatabase
from .advisory import Advisory
from .candidates import Candidates
from .compare_and_set import CompareAndSet
from .held import Held
from .key_limits import WAIT, key_limits
from .per_key import PerKey
from .skip_locked import SkipLocked
from .spec import ClaimSpec, Request, Taken
from .strategy import Strategy
from .strict_order import InOrder, StrictOrder
from .update_then_select import UpdateThenSelect

__all__ = [
    "AUTO",
    "STRATEGIES",
    "WAIT",
    "ClaimSpec",
    "Request",
    "Strategy",
    "Taken",
    "check_name",
    "choose",
    "key_limits",
    "needs_no_mixin",
]

AUTO = "auto"

#: The strategies that ``strategy=`` can name.
STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy
    for strategy in (SkipLocked, Held, Candidates, UpdateThenSelect, CompareAndSet, Advisory)
}


def check_name(name: str, *, strict: bool = False, limited: bool = False) -> None:
    """Refuse an unknown name, and any name beside a strict order or limits of keys.

    Raises:
        ArgumentError: names the strategies, or what to leave out.
    """
    if name != AUTO and name not in STRATEGIES:
        raise ArgumentError(
            f"there is no strategy {name!r}; use {AUTO!r} or one of {', '.join(STRATEGIES)}"
        )
    if strict and name != AUTO:
        raise ArgumentError(
            f"strategy {name!r} keeps no strict order: with strict_order=True leave strategy= out"
        )
    if limited and (name != AUTO or strict):
        refused = "strict_order=True" if strict else f"strategy={name!r}"
        raise ArgumentError(f"serial_by= and limit_by= claim in their own way: leave {refused} out")


def needs_no_mixin(name: str) -> bool:
    """Tell whether a strategy claims any mapped class, writing nothing to it."""
    check_name(name)
    return name != AUTO and STRATEGIES[name].any_class


def choose(
    name: str,
    spec: ClaimSpec,
    database: Database,
    *,
    hooked: bool = False,
    drawn: bool = False,
    indexed: bool = True,
) -> Strategy:
    """Make the strategy of this name, or for ``"auto"`` the strategy that fits.

    Args:
        hooked: do_orm_execute hooks may add criteria.
        drawn: candidates are read from another session.
        indexed: the table has the indexes that the model declares.

    Raises:
        UnsupportedDatabase: the database cannot run it.
    """
    if spec.limits:
        return PerKey(spec, database, indexed=indexed)
    if spec.strict:
        kind = InOrder if database.skip_locked else _fitting(spec, database)
        return StrictOrder(kind(spec, database, indexed=indexed))
    if name == AUTO:
        fitting = _fitting(spec, database, hooked=hooked, drawn=drawn)
        return fitting(spec, database, indexed=indexed)
    return STRATEGIES[name](spec, database, indexed=indexed)


def _fitting(
    spec: ClaimSpec, database: Database, *, hooked: bool = False, drawn: bool = False
) -> type[Strategy]:
    """Return the strategy that fits; never held or advisory.

    Raises:
        UnsupportedDatabase: none fits.
    """
    if database.skip_locked:
        stray = hooked or spec.partitioned or not spec.served
        unserved = database.locks_what_it_scans and stray
        return Candidates if drawn or unserved else SkipLocked
    if database.one_writer and database.update_returning:
        return CompareAndSet
    if database.ordered_update:
        return UpdateThenSelect
    raise UnsupportedDatabase(
        f"{database} cannot claim safely: it has neither SKIP LOCKED nor "
        "UPDATE .. ORDER BY .. LIMIT, and more than one writer at a time. Use another database"
    )
