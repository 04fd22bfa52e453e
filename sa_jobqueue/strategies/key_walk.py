"""From key to key by the index of a key: what `serial_by`, `limit_by` and `fair_by` have in common.

The index has the equality columns, status, key, attempts, and the claim order. So the walk makes
one step into the index for each key, however many jobs a key has::

    WITH RECURSIVE keys AS (
        SELECT (SELECT min of tenant_id > :after) AS tenant_id, 1 AS step
        UNION ALL
        SELECT (SELECT min of tenant_id > keys.tenant_id), step + 1 FROM keys WHERE step < :limit)
    SELECT tenant_id, (SELECT id of its first due job) FROM keys

On InnoDB a SELECT DISTINCT jumps from key to key in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Index,
    Integer,
    bindparam,
    literal_column,
    or_,
    select,
    tuple_,
)
from sqlalchemy.orm import InstrumentedAttribute

from ..model.indexes import key_index
from ..model.status import status_is
from .candidates import ByCandidates
from .ready_rows import adapted

#: The parameter for how many jobs of a key come before the one that is read.
BEFORE = "sa_jobqueue_before"

NUMBER_1: ColumnElement[int] = literal_column("1", Integer)


class KeyWalk(ByCandidates):
    """A strategy that knows the jobs of each key by the key's index."""

    @property
    def key(self) -> tuple[InstrumentedAttribute[Any], ...]:
        """The attributes whose values are the key."""
        raise NotImplementedError

    @cached_property
    def nullable(self) -> list[Any]:
        """The attributes of the key that may be NULL: such a job has no key."""
        return [attribute for attribute in self.key if column_of(attribute).nullable]

    @property
    def has_no_key(self) -> ColumnElement[bool]:
        """The criterion that a job has no key."""
        return or_(*(attribute.is_(None) for attribute in self.nullable))

    def in_key(self, columns: Sequence[Any], same: Any, *, behind: bool = True) -> Any:
        """Select columns of the due jobs of a key, in the order of its index.

        Args:
            same: the criteria that a job has the key.
            behind: those behind so many as the parameter BEFORE says; False: all.
        """
        found = select(*columns).where(*self.ready.criteria, *same).order_by(*self.order_in_key)
        found = found.offset(bindparam(BEFORE, type_=Integer)) if behind else found
        return self.by_key_index(found)

    @property
    def order_in_key(self) -> list[Any]:
        """The order of the key's index; MySQL needs its leading columns in it, too."""
        mapping = self.mapping
        tried = [mapping.attribute("attempts")] if mapping.has("attempts") else []
        leading = (*mapping.equality, mapping.attribute("status"), *self.key)
        return [*leading, *tried, *self.spec.order]

    def each_key(self, behind: Sequence[Any] = (), *, most: Any = None) -> Any:
        """Select the keys that have ready jobs, each once.

        Args:
            behind: those behind the key with these values.
            most: the first so many, in their order; None: all.
        """
        return (self._distinct if self.database.skips_repeats else self._stepping)(behind, most)

    def _distinct(self, behind: Sequence[Any], most: Any) -> Any:
        # With the index's columns before it: else the database would read all entries.
        status, columns = self.mapping.column("status"), [*map(column_of, self.key)]
        leading = [*map(column_of, self.mapping.equality), status]
        found = select(*leading, *columns).where(
            *self.spec.equalities,
            status_is(status, self.spec.ready),
            *(column.is_not(None) for column in columns),
            *_is_behind(columns, behind),
        )
        found = found.distinct()
        if most is not None:
            found = found.order_by(*leading, *columns).limit(most)
        return self.by_key_index(found).subquery("sa_jobqueue_keys")

    def _stepping(self, behind: Sequence[Any], most: Any) -> Any:
        waiting: Any = self.mapping.table.alias("sa_jobqueue_waiting")
        columns = [waiting.c[column_of(attribute).key] for attribute in self.key]
        status = waiting.c[self.mapping.column("status").key]

        def first(behind: Sequence[Any]) -> list[Any]:
            found = select(columns[0]).where(
                *(adapted(criterion, waiting) for criterion in self.spec.equalities),
                status_is(status, self.spec.ready),
                *_is_behind(columns, behind),
                *(column.is_not(None) for column in columns),
            )
            found = found.order_by(*columns).limit(NUMBER_1)
            return [found.with_only_columns(each).scalar_subquery() for each in columns]

        labelled = [value.label(c.key) for value, c in zip(first(behind), columns, strict=True)]
        step = [] if most is None else [NUMBER_1.label("sa_jobqueue_step")]
        keys = select(*labelled, *step).cte("sa_jobqueue_keys", recursive=True)
        further = select(*first([keys.c[c.key] for c in columns]))
        further = further.where(keys.c[columns[0].key].is_not(None))  # the last step finds NULL
        if most is not None:
            number = keys.c.sa_jobqueue_step
            further = further.add_columns(number + 1).where(number < most)
        return keys.union_all(further)

    def by_key_index(self, statement: Any) -> Any:
        """Bind a SELECT to the key's index, where there is one."""
        words = None if self.index is None else self.database.forced_index(self.index)
        return statement if words is None else statement.with_hint(self.mapping.table, words)

    @property
    def index(self) -> Index | None:
        """The index of the key."""
        return key_index(self.mapping, self.key) if self.indexed else None


def column_of(attribute: Any) -> Any:
    """Return the table's column of a mapped attribute."""
    return attribute.property.columns[0]


def _is_behind(columns: Sequence[Any], others: Sequence[Any]) -> list[ColumnElement[bool]]:
    if not others:
        return []
    if len(columns) == 1:
        return [columns[0] > others[0]]
    return [tuple_(*columns) > tuple_(*others)]
