"""The application's own columns, which a finish writes in its own statement.

::

    complete(session, emails, values={Email.processed: True})
    complete(session, emails, values=lambda email: {Email.size: sizes[email.id]})

Jobs with equal values are written together. All values are checked before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from sqlalchemy import ClauseElement, Column
from sqlalchemy.orm import InstrumentedAttribute

from ..errors import ArgumentError
from ..fence.claim import FencedJobs
from ..fence.statements import own_parameter
from ..fence.token import Change
from ..model.mapping import QueueMapping

#: Own columns with their values; or a function that returns them for a job, as it was given.
OwnValues: TypeAlias = Mapping[Any, Any] | Callable[[Any], Mapping[Any, Any]]

Changes: TypeAlias = Sequence[tuple[Change, list[FencedJobs]]]

#: What every verb writes, or what its fence compares.
_ROLES = ("status", "owner", "owner_date", "attempts", "round")

#: What some verbs write besides.
_ROLES_OF = {"fail": ("last_error", "run_at"), "cancel_claimed": ("last_error",)}


def with_own_values(changes: Changes, values: OwnValues | None) -> Changes:
    """Return changes that also write own columns.

    Raises:
        ArgumentError: own columns that this change cannot write.
    """
    if values is None:
        return changes
    if not callable(values):
        return [
            (_and_own(change, part.mapping, values), [part])
            for change, parts in changes
            for part in parts
        ]
    return [
        (_and_own(change, part.mapping, own), [alike])
        for change, parts in changes
        for part in parts
        for own, alike in _by_values(part, values)
    ]


def _by_values(
    part: FencedJobs, values: Callable[[Any], Mapping[Any, Any]]
) -> list[tuple[Mapping[Any, Any], FencedJobs]]:
    """Divide jobs by their values."""
    groups: dict[Any, tuple[Mapping[Any, Any], FencedJobs]] = {}
    for index, job, identity in part.indexed:
        own = values(job)
        alike = replace(part, identities=[], jobs=[], indices=[])
        _, alike = groups.setdefault(_group(own), (own, alike))
        alike.identities.append(identity)
        alike.jobs.append(job)
        alike.indices.append(index)
    return list(groups.values())


def _group(own: Any) -> Any:
    """Return a key that equal values have in common; those that have no hash stay alone."""
    try:
        key = tuple((name, type(value), value) for name, value in own.items())
        hash(key)
    except (AttributeError, TypeError):
        return object()
    return key


def check_own_values(mapping: QueueMapping, verb: str, values: Any) -> dict[Column[Any], Any]:
    """Return own columns of a class with their values.

    Raises:
        ArgumentError: no mapping, or columns that the verb cannot write beside its own.
    """
    if not isinstance(values, Mapping):
        raise ArgumentError(
            f"values= takes attributes with their values, as in {{{mapping}.name: 'x'}}, or a "
            f"function that returns them for a job, not {values!r}"
        )
    return {
        _own_column(mapping, verb, name): _plain(verb, name, value)
        for name, value in values.items()
    }


def _and_own(change: Change, mapping: QueueMapping, values: Any) -> Change:
    own = check_own_values(mapping, change.verb, values)
    if not own:
        return change
    if not mapping.is_queue:
        raise ArgumentError(
            f"{change.verb}(values=) needs JobMixin, and {mapping} has none: set the attributes of "
            "the job itself, and flush it"
        )
    if change.values is None:
        raise ArgumentError(
            f"complete(values=) writes to rows that stay, and those of {mapping} are deleted: "
            "leave out values=, or keep the rows by delete=False"
        )
    parameters = {own_parameter(index): value for index, value in enumerate(own.values())}
    return replace(change, own=tuple(own), parameters={**change.parameters, **parameters})


def _own_column(mapping: QueueMapping, verb: str, name: Any) -> Column[Any]:
    is_own = isinstance(name, InstrumentedAttribute) and mapping.mapper.isa(name.parent.mapper)
    columns = getattr(name.property, "columns", []) if is_own else []
    column = columns[0] if columns else None
    if not isinstance(column, Column):
        raise ArgumentError(
            f"{verb}(values=) takes attributes of {mapping} that are columns, as in "
            f"{{{mapping}.name: 'x'}}, not {name!r}"
        )
    if any(column in mapping.keys or column.primary_key for column in columns):
        raise ArgumentError(f"{verb}(values=) cannot change {name}: it is of the primary key")
    if column.table is not mapping.table:
        raise ArgumentError(
            f"{verb}(values=) writes to the table {mapping.table}, and {name} is in "
            f"{column.table}: set it with the session"
        )
    roles = (*_ROLES, *_ROLES_OF.get(verb, ()))
    if any(mapping.has(role) and mapping.column(role) is column for role in roles):
        raise ArgumentError(f"{verb}() writes {name} itself: leave it out of values=")
    return column


def _plain(verb: str, name: Any, value: Any) -> Any:
    if isinstance(value, ClauseElement | InstrumentedAttribute):
        raise ArgumentError(
            f"{verb}(values=) takes plain values, and that of {name} is an SQL expression: give "
            "its value, for each job by a function"
        )
    return value
