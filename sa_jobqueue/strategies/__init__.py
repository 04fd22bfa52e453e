"""One file for each way to claim; :func:`choose` picks the way for a queue and a database.

To add a strategy, subclass :class:`Strategy`, and add it to the list of STRATEGIES.
"""

from __future__ import annotations

from ..databases import Database
from ..errors import ArgumentError, UnsupportedDatabase
from .advisory import Advisory
from .candidates import Candidates
from .compare_and_set import CompareAndSet
from .held import Held
from .skip_locked import SkipLocked
from .spec import ClaimSpec, Request, Taken, key_limit
from .strategy import Strategy
from .update_then_select import UpdateThenSelect

__all__ = [
    "AUTO",
    "STRATEGIES",
    "ClaimSpec",
    "Request",
    "Strategy",
    "Taken",
    "check_name",
    "choose",
    "key_limit",
    "needs_no_mixin",
]

AUTO = "auto"

#: The strategies that ``strategy=`` can name.
STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy
    for strategy in (SkipLocked, Held, Candidates, UpdateThenSelect, CompareAndSet, Advisory)
}


def check_name(name: str, spec: ClaimSpec | None = None) -> None:
    """Refuse an unknown name, and options of a queue that do not go together.

    Raises:
        ArgumentError: names the strategies, or what to leave out.
    """
    if name != AUTO and name not in STRATEGIES:
        raise ArgumentError(
            f"there is no strategy {name!r}; use {AUTO!r} or one of {', '.join(STRATEGIES)}"
        )
    if spec is None:
        return
    ways = {
        f"strategy={name!r}": name != AUTO,
        "strict_order=True": spec.strict,
        "serial_by= and limit_by=": spec.key_limit is not None,
        "rate=": spec.rate is not None,
        "fair_by=": bool(spec.fair_by),
    }
    given = [option for option, is_given in ways.items() if is_given]
    if len(given) > 1:
        raise ArgumentError(
            f"leave {given[-2]} out: {given[-1]} has a way to claim of its own, and takes no other"
        )


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
    indexed: bool = True,
) -> Strategy:
    """Make the strategy of this name, or for ``"auto"`` the strategy that fits.

    Args:
        hooked: do_orm_execute hooks may add criteria.
        indexed: the table has the indexes that the model declares.

    Raises:
        UnsupportedDatabase: the database cannot run it.
    """
    if spec.rate is not None:
        from .rates import Rated

        return Rated(spec, database, indexed=indexed)
    if spec.fair_by:
        from .fair import Fair

        return Fair(spec, database, indexed=indexed)
    if spec.key_limit is not None:
        from .per_key import PerKey

        return PerKey(spec, database, indexed=indexed)
    if spec.strict:
        from .strict_order import InOrder, StrictOrder

        kind = InOrder if database.skip_locked else _fitting(spec, database)
        return StrictOrder(kind(spec, database, indexed=indexed))
    if name == AUTO:
        fitting = _fitting(spec, database, hooked=hooked)
        return fitting(spec, database, indexed=indexed)
    return STRATEGIES[name](spec, database, indexed=indexed)


def _fitting(spec: ClaimSpec, database: Database, *, hooked: bool = False) -> type[Strategy]:
    """Return the strategy that fits; never held or advisory.

    Raises:
        UnsupportedDatabase: none fits.
    """
    if database.skip_locked:
        stray = hooked or spec.partitioned or not spec.served
        return Candidates if database.locks_what_it_scans and stray else SkipLocked
    if database.one_writer and database.update_returning:
        return CompareAndSet
    if database.ordered_update:
        return UpdateThenSelect
    raise UnsupportedDatabase(
        f"{database} cannot claim safely: it has neither SKIP LOCKED nor "
        "UPDATE .. ORDER BY .. LIMIT, and more than one writer at a time. Use another database"
    )
