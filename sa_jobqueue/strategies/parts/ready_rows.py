"""The ready rows of a queue: the SELECT of the next jobs, and its claim index."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement, Integer, Select, bindparam, select, tuple_

from ...dialects import Database
from ...dialects.clock import utc_now
from ...model.indexes import claim_index
from ...model.keys import key_is_in
from ...model.status import exact_pattern, word_literal
from ..spec import ClaimSpec
from .levels import Levels

#: The parameter for the number of rows wanted.
LIMIT = bindparam("sa_jobqueue_limit", type_=Integer, required=True)


class ReadyRows:
    """The claimable rows of one queue on one database, as criteria and statements."""

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        self.spec = spec
        self.mapping = spec.mapping
        self.database = database
        self.levels = Levels(spec, database)

    # -- criteria -------------------------------------------------------

    @cached_property
    def has_status(self) -> ColumnElement[bool]:
        """The criterion that a job has the ready status, which is a literal in it."""
        return self.mapping.has_status(self.spec.ready)

    @cached_property
    def due(self) -> list[ColumnElement[bool]]:
        """The criterion that a job's time has come, for scheduled queues."""
        if not self.mapping.has("run_at"):
            return []
        return [self.mapping.attribute("run_at") <= utc_now()]

    @cached_property
    def criteria(self) -> list[ColumnElement[bool]]:
        """All criteria of a claimable job: status, time, and the caller's."""
        return [self.has_status, *self.due, *self.spec.where]

    def key_is_in(self, parameter: str) -> ColumnElement[bool]:
        """Compare the primary key with a list of keys, given as a parameter."""
        return key_is_in(self.mapping, parameter, self.database)

    # -- the next rows --------------------------------------------------

    def select(self, *columns: Any, plain: bool = False, due: bool = True) -> Any:
        """Select up to ``:sa_jobqueue_limit`` claimable rows in claim order.

        Where the queue has levels, those of the level ``:sa_jobqueue_round``,
        ``:sa_jobqueue_priority``.

        Args:
            plain: the SELECT will lock nothing.
            due: without rows whose time has not come.
        """
        statement: Any = select(*columns).where(self.has_status, *(self.due if due else ()))
        statement = statement.where(*self._where(plain=plain), *self.levels.criteria)
        if plain:
            statement = statement.where(*self._status_again())
        return statement.order_by(*self.levels.order).limit(LIMIT)

    def _where(self, *, plain: bool) -> Sequence[ColumnElement[bool]]:
        """Return the caller's criteria, the round as a range where PostgreSQL needs it.

        A range bounds the index, and keeps the planner from choosing a sort on a low row
        estimate.
        """
        forgets = plain and self.database.forgets_implied and not self.due
        if not forgets or not self.spec.of_round:
            return self.spec.where
        status, round_ = self.mapping.attribute("status"), self.mapping.attribute("round")
        number = self.spec.of_round[0].right
        begins = tuple_(status, round_) >= tuple_(word_literal(self.spec.ready), number)
        return [*self.spec.where_round_ranges, begins]

    def _status_again(self) -> list[ColumnElement[bool]]:
        """Name the status once more, in a way that bounds the claim index.

        From a SELECT that locks nothing PostgreSQL drops what a partial index
        implies: the status, the leading column of the claim index. The columns
        behind it then bound nothing, and a claim walked over all of a million jobs
        due tomorrow (9,382 pages, 6 with this criterion). To the planner a LIKE
        without a wildcard is no implication; to the index it is a comparison for
        equality.
        """
        if not self.database.forgets_implied or not self.due:
            return []
        return [self.mapping.attribute("status").like(exact_pattern(self.spec.ready))]

    # -- locks and indexes ----------------------------------------------

    def locked(
        self,
        statement: Select[Any],
        *,
        of: bool = True,
        waiting: bool = False,
        nowait: bool = False,
    ) -> Select[Any]:
        """Lock the selected rows, passing over those that others have locked.

        Args:
            of: name the table; SQLAlchemy before 2.0.39 cannot inside a LATERAL.
            waiting: wait for the rows that others have locked instead.
            nowait: fail where others have locked one, instead.
        """
        return statement.with_for_update(
            nowait=nowait,
            skip_locked=not (waiting or nowait),
            key_share=self.database.no_key_update,
            of=self.mapping.table if of and self.database.lock_of else None,
        )

    def by_claim_index(self, statement: Select[Any]) -> Select[Any]:
        """Bind a SELECT in claim order to the claim index, by a hint where the database has them.

        A hint is void where the table has no claim index.
        """
        if self.claim_index_hint is None or self.spec.order_by:
            return statement
        return statement.prefix_with(self.claim_index_hint)

    @cached_property
    def claim_index_hint(self) -> str | None:
        """The comment that binds a SELECT to the claim index; None where there are none."""
        index = claim_index(self.mapping)
        return None if index is None else self.database.index_hint(index)
