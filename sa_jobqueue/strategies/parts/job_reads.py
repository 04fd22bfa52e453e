"""SELECTs of jobs in two forms, of entities and of plain rows; each is built at first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from sqlalchemy.orm import RelationshipProperty, selectinload

from ...model.mapping import QueueMapping
from ...model.plain_rows import row_columns
from ...sessions.writer import Writer
from ..spec import Request
from .ready_rows import ReadyRows


class ReadBack:
    """A SELECT of jobs that were marked or locked before.

    Args:
        build: makes the SELECT of the columns that it is given.
    """

    def __init__(self, mapping: QueueMapping, build: Callable[..., Any]) -> None:
        self._mapping = mapping
        self._build = build

    @cached_property
    def entities(self) -> Any:
        """The SELECT of entities."""
        return self._build(self._mapping.entity).options(*loading_options(self._mapping))

    @cached_property
    def rows(self) -> Any:
        """The SELECT of plain rows."""
        return self._build(*row_columns(self._mapping, during=None, orm=True))

    def run(self, writer: Writer, request: Request, parameters: dict[str, Any]) -> list[Any]:
        """Read jobs; overwrite what the session had loaded before."""
        if request.rows:
            return list(writer.rows(self.rows, parameters).all())
        return list(writer.fresh(self.entities, parameters).scalars().all())


class LockingRead:
    """A SELECT that locks jobs, with the time that the mark will write.

    Args:
        build: makes the SELECT of the columns that it is given.
        marks: whether a mark follows; then plain rows are read as they will be once
            they are marked.
    """

    def __init__(self, ready: ReadyRows, build: Callable[..., Any], *, marks: bool = True) -> None:
        self._ready = ready
        self._build = build
        self._marks = marks

    @cached_property
    def entities(self) -> Any:
        """The locking read of entities, each with the time of the claim."""
        moment = self._ready.database.moment()
        read = self._build(self._ready.mapping.entity, moment.label("sa_jobqueue_date"))
        return read.options(*loading_options(self._ready.mapping))

    @cached_property
    def rows(self) -> Any:
        """The locking read of plain rows."""
        moment = self._ready.database.moment()
        during = self._ready.spec.during if self._marks else None
        return self._build(*row_columns(self._ready.mapping, during, moment, orm=True))

    def run(self, writer: Writer, request: Request, parameters: dict[str, Any]) -> list[Any]:
        """Lock jobs; overwrite what the session had loaded before.

        Returns:
            Rows, or pairs of an entity and the time of the claim.
        """
        if request.rows:
            owner = {"sa_jobqueue_owner": request.owner} if self._marks else {}
            return list(writer.rows(self.rows, {**parameters, **owner}).all())
        return list(writer.fresh(self.entities, parameters).all())

    def forget(self) -> None:
        """Build the statements anew at their next use."""
        for form in ("entities", "rows"):
            vars(self).pop(form, None)


def loading_options(mapping: QueueMapping) -> list[Any]:
    """List options for a SELECT of entities that locks: no joins but the entity's own.

    FOR UPDATE is refused on the nullable side of an outer join, and would lock the
    joined rows elsewhere.
    """
    return [
        selectinload(getattr(mapping.entity, relationship.key))
        for relationship in mapping.mapper.relationships
        if _joins(relationship)
    ]


def _joins(relationship: RelationshipProperty[Any]) -> bool:
    return relationship.lazy in ("joined", False)
