"""Mixins that turn a mapped class into a queue: columns and indexes, no verbs.

::

    class Email(JobMixin, Base):
        __tablename__ = "email"
        id: Mapped[int] = mapped_column(primary_key=True)
        recipient: Mapped[str] = mapped_column(String(100))

Where the class has a ``status`` or an ``owner`` of its own, ours take other
names, as attributes and as columns::

    class Order(JobMixin.named(status="job_status", owner="job_owner"), Base): ...

Type checkers know no call as a base class; docs/reference/claims.md shows what to write for them.

The columns are un-annotated ``declared_attr``\\ s, and the indexes are made when the mapper
has been constructed: no other way works for every style of mapping. (The user's
``__table_args__`` silently replaces that of a mixin, and ``after_configured`` comes after
Alembic has read the metadata.) The constructors of dataclasses and of SQLModel do not know
un-annotated columns; :func:`sa_jobqueue.enqueue` sets them in every style.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from sqlalchemy import (
    Column,
    ColumnDefault,
    DateTime,
    Enum,
    Join,
    String,
    Table,
    Text,
    event,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import InstanceState, Mapped, Mapper, declared_attr, mapped_column
from sqlalchemy.types import NullType, TypeEngine

from ..databases import dialect_of
from ..databases.clock import as_utc
from ..errors import ArgumentError
from .columns import (
    MARK,
    SHORTEST_LENGTH,
    WORDS,
    add_round_table,
    column_of,
    has_no_zone,
    same_kind,
    timestamp_type,
    variant_of,
)
from .indexes import add_indexes
from .mapping import TIME_ROLES, QueueMapping
from .status import UNCLAIMED


def _declare(role: str, name: str) -> Any:
    """Make the declared_attr of one role under the given name."""

    # Un-annotated: SQLAlchemy would take a return annotation for that of the attribute.
    def declare(cls):  # type: ignore[no-untyped-def]
        table = vars(cls).get("__table__")  # its own; a subclass inherits its parent's
        if table is not None:
            return table.c.get(name)
        if _is_given(cls, role) and _annotated(cls, name):
            return mapped_column(name, info={MARK: role})  # typed by the annotation
        return column_of(role, name, cls)

    declare.__name__ = name
    return declared_attr(declare)


class QueueColumns:
    """The base of all mixins; the mapper events are listened for here."""

    __queue_attributes__: ClassVar[Mapping[str, str]] = {}

    #: The attributes that tell people which job it is, beside its key; see job_text().
    __job_text__: ClassVar[Sequence[str]] = ()

    #: The roles whose names were given: a column that the class declares by such a name serves.
    __queue_named__: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def job_text(cls, *values: Any) -> str:
        """Say which job has these values of the attributes of ``__job_text__``."""
        return " ".join(map(str, values))

    @classmethod
    def named(cls, **names: str) -> Any:
        """Return the mixin with other names, for attributes and columns alike.

        A column that the class declares by a name given here serves as it is declared, with its
        type, length, default and index::

            class Delivery(JobMixin.named(status="state"), Base):
                state: Mapped[str | None] = mapped_column(String(64), index=True)

        Args:
            names: names for columns of the mixin, such as ``status="job_status"``, or
                ``status="status"`` for a column that the class declares; columns that are not
                given keep theirs.

        Raises:
            ArgumentError: the mixin has no such column, or a name is given twice.
        """
        unknown = sorted(set(names) - set(cls.__queue_attributes__))
        if unknown:
            raise ArgumentError(
                f"{cls.__name__} has no column {', '.join(map(repr, unknown))} to name; it has "
                f"{', '.join(cls.__queue_attributes__)}"
            )
        attributes = {
            role: names.get(role, name) for role, name in cls.__queue_attributes__.items()
        }
        if len(set(attributes.values())) < len(attributes):
            raise ArgumentError(f"{cls.__name__}.named() gives one name to two columns: {names}")
        made = type(cls.__name__, (QueueColumns,), {"__doc__": cls.__doc__})
        return _filled(made, attributes, cls.__queue_named__ | set(names))


_Typed = TypeVar("_Typed", bound=QueueColumns)


def declares(*roles: str) -> Callable[[type[_Typed]], type[_Typed]]:
    """Give a mixin the columns of these roles, under the roles' own names."""
    return lambda mixin: _filled(mixin, {role: role for role in roles})


def _filled(
    mixin: type[_Typed], attributes: Mapping[str, str], named: frozenset[str] = frozenset()
) -> type[_Typed]:
    """Give a mixin columns: for each role by the name of its attribute."""
    mixin.__queue_attributes__ = attributes
    mixin.__queue_named__ = named
    for role, name in attributes.items():
        setattr(mixin, name, _declare(role, name))
    return mixin


@declares("status", "owner", "owner_date")
class JobMixin(QueueColumns):
    """Add ``status``, ``owner`` and ``owner_date``, the claim index and the reap index."""

    if TYPE_CHECKING:
        status: Mapped[str]
        owner: Mapped[str | None]
        owner_date: Mapped[datetime | None]


@declares("priority")
class PriorityMixin(QueueColumns):
    """Add ``priority``: a small integer, by default 0; smaller comes sooner."""

    if TYPE_CHECKING:
        priority: Mapped[int]


@declares("run_at")
class ScheduleMixin(QueueColumns):
    """Add ``run_at``: no claim takes a job before that time.

    By default it is the time of the insert by the database's clock, also for rows that are
    inserted by plain SQL.
    """

    if TYPE_CHECKING:
        run_at: Mapped[datetime]


@declares("run_at", "attempts", "max_attempts", "last_error")
class RetryMixin(QueueColumns):
    """Add ``attempts`` (counted by the claim), ``max_attempts`` and ``last_error``.

    By default a job is tried 20 times; a ``max_attempts`` of None means
    until it succeeds. No job is tried again without a wait, so ``run_at`` comes with this
    mixin: it is that of ScheduleMixin, and a class may have both.
    """

    if TYPE_CHECKING:
        run_at: Mapped[datetime]
        attempts: Mapped[int]
        max_attempts: Mapped[int | None]
        last_error: Mapped[str | None]


@declares("expires_at")
class ExpiryMixin(QueueColumns):
    """Add ``expires_at``: a job that nobody has claimed by then is cancelled; None: never.

    Workers look for such jobs when they reap.
    """

    if TYPE_CHECKING:
        expires_at: Mapped[datetime | None]


@declares("round")
class RoundMixin(QueueColumns):
    """Add ``round``: the number of the round that a row is in; see :func:`sa_jobqueue.start_round`.

    0, the default, is no round. A second table, ``<table>_rounds``, records which rounds
    were started. Without JobMixin, for the strategies held and advisory, this mixin works alone.
    """

    if TYPE_CHECKING:
        round: Mapped[int]


@event.listens_for(QueueColumns, "after_mapper_constructed", propagate=True)
def _become_queue(mapper: Mapper[Any], class_: type) -> None:
    """Check the columns, add the indexes, and make times read back as UTC."""
    mapping = QueueMapping(mapper)
    if not isinstance(mapper.local_table, Table | Join):
        # An AbstractConcreteBase is mapped to the UNION of its subclasses. They are queues; a
        # verb on the base itself is refused by QueueMapping.table.
        return
    _check_run_at(mapping)
    mapping.check_shown()
    if "max_attempts" in getattr(class_, "__queue_args__", {}) and not mapping.has("attempts"):
        raise ArgumentError(
            f"{mapping}.__queue_args__['max_attempts'] limits the attempts of RetryMixin: add "
            "RetryMixin to its bases"
        )
    for role in mapping.attributes:
        _check_column(mapping, role)
    own = {str(key): word for key, word in mapping.args.names.items() if key != word}
    if mapping.is_queue and own:  # for migrations, which see the table
        mapping.column("status").info[WORDS] = own
    if mapping.is_ordered:
        add_indexes(mapping)
    if mapping.has("round"):
        add_round_table(mapping, timestamp_type())
    if mapping.time_keys:
        _read_back_as_utc(mapping)


def _check_run_at(mapping: QueueMapping) -> None:
    """Refuse two names for the column that ScheduleMixin and RetryMixin share."""
    given = [vars(base).get("__queue_attributes__", {}) for base in mapping.entity.__mro__]
    names = list(dict.fromkeys(names["run_at"] for names in given if "run_at" in names))
    if len(names) > 1:
        raise ArgumentError(
            f"{mapping} has run_at by two names, {' and '.join(names)}; ScheduleMixin and "
            f"RetryMixin share it: give both one name, as in RetryMixin.named(run_at={names[0]!r})"
        )


def _check_column(mapping: QueueMapping, role: str) -> None:
    """Take a column of the user's own that serves; refuse any other, and say the way out."""
    entity, name = mapping.entity.__name__, mapping.attributes[role]
    mixin, other = _mixin_of(mapping.entity, role), f"named({role}='job_{role}')"
    if role == "max_attempts":
        other += ". For another default it takes no column: __queue_args__ = {'max_attempts': 5}"
    column = mapping.mapper.columns.get(name)
    if column is None:
        raise ArgumentError(
            f"{entity}.{name} is not mapped to a column; {role} needs one. If the table's column "
            f"has another name, map it: {name} = mapped_column('its_name'). If the name is taken, "
            f"give the queue's column another name: {mixin}.{other}"
        )
    ours = column.info.get(MARK) == role
    if ours and not _annotated(mapping.entity, name):
        return
    if (
        not _is_given(mapping.entity, role)
        and hasattr(mapping.entity, "__tablename__")
        and column.name == name
    ):
        raise ArgumentError(
            f"{entity} has a {name!r} of its own. If it is to serve as the queue's {role}, say so: "
            f"{mixin}.named({role}={name!r}). Else give the queue's column another name: "
            f"{mixin}.{other}"
        )
    _adopt(mapping, role, column)


def _mixin_of(entity: type, role: str) -> str:
    """Name the mixin that gives a class the column of a role."""
    return next(
        base.__name__
        for base in entity.__mro__
        if role in vars(base).get("__queue_attributes__", {})
    )


def _is_given(entity: type, role: str) -> bool:
    """Tell whether the name of a role was given by named()."""
    return any(role in vars(base).get("__queue_named__", ()) for base in entity.__mro__)


def _annotated(entity: type, name: str) -> bool:
    """Tell whether a class of the user annotates ``name: Mapped[..]``."""
    return any(
        name in vars(base).get("__annotations__", {})
        for base in entity.__mro__
        if base.__module__ != __name__
    )


#: The types that SQLAlchemy makes of ``Mapped[str]``, ``Mapped[int]`` and ``Mapped[datetime]``.
_BARE = ("String()", "Integer()", "DateTime()")


def _adopt(mapping: QueueMapping, role: str, column: Column[Any]) -> None:
    """Check that the user's column can serve; it stays as it is declared."""
    pattern: Column[Any] = column_of(role, column.name, mapping.entity).column
    if column.info.get(MARK) == role and repr(column.type) in _BARE:
        # An annotation alone, for type checkers: the column is ours.
        column.type, column.nullable = pattern.type, pattern.nullable
        column.default, column.server_default = pattern.default, pattern.server_default
        return
    if isinstance(column.type, NullType):
        column.type = pattern.type
    for what, wanted in _problems(mapping, role, column, pattern):
        other = f"; or give the queue a column of its own: {_mixin_of(mapping.entity, role)}.named("
        # Never a second status: claims of others go by the one that is there.
        way_out = "" if role == "status" else f"{other}{role}='job_{role}')"
        name = mapping.attributes[role]
        raise ArgumentError(f"{mapping}.{name} {what}, but {role} needs {wanted}{way_out}")
    if isinstance(column.type, DateTime):
        column.type = _with_microseconds(column.type)
    if role == "max_attempts":
        column.type = column.type.evaluates_none()  # None means: no limit
    if column.default is None and column.server_default is None:
        # The ORM gets a value for new jobs; the table gets none.
        word = mapping.shown(mapping.word(UNCLAIMED)) if role == "status" else None
        column.default = pattern.default if word is None else ColumnDefault(word)
    column.info[MARK] = role


def _problems(
    mapping: QueueMapping, role: str, column: Column[Any], pattern: Column[Any]
) -> Iterator[tuple[str, str]]:
    """Yield what keeps the user's column from serving, each with what the role needs."""
    type_ = column.type
    if role == "status" and isinstance(type_, String):
        for word in mapping.args.words:
            mapping.check_word(word)
    elif not _fits(type_, pattern.type):
        yield f"is {type_!r}", repr(pattern.type)
    # PostgreSQL would compare a time without a zone in the zone of each session.
    if role in TIME_ROLES and has_no_zone(type_, dialect_of("postgresql")):
        yield (
            f"is {type_!r}",
            "a time zone: use DateTime(timezone=True). A column of PostgreSQL that is there in UTC "
            f"is altered with postgresql_using=\"{column.name} AT TIME ZONE 'UTC'\", else its "
            "times are shifted",
        )
    if column.nullable and not pattern.nullable and role != "status":
        yield "may be NULL", "nullable=False: no claim takes a NULL in order"
    if not column.nullable and pattern.nullable and role != "max_attempts":
        yield "may not be NULL", "nullable=True: unclaimed jobs have none"


def _with_microseconds(type_: DateTime) -> TypeEngine[datetime]:
    """Make MySQL and MariaDB keep microseconds, which the fence compares, not only seconds.

    A type of theirs stays as it is; the first claim refuses one that keeps too few digits.
    """
    for name in ("mysql", "mariadb"):
        if variant_of(type_, name) is None and not isinstance(type_, mysql.DATETIME):
            type_ = type_.with_variant(mysql.DATETIME(fsp=6), name)
    return type_


def _fits(type_: TypeEngine[Any], wanted: TypeEngine[Any]) -> bool:
    if not isinstance(wanted, String):
        return same_kind(type_, wanted)
    length = getattr(type_, "length", None)
    needed = SHORTEST_LENGTH if isinstance(wanted, Text) else wanted.length
    return (
        isinstance(type_, String)
        and not isinstance(type_, Enum)
        and (length is None or needed is None or length >= needed)
    )


def _read_back_as_utc(mapping: QueueMapping) -> None:
    """Make the times of loaded and assigned values aware UTC.

    SQLite and MySQL return naive values and drop offsets; PostgreSQL answers in the time
    zone of its session. A type of our own would do it too, but migrations that Alembic
    renders would import it.
    """
    keys = mapping.time_keys

    def loaded(state: InstanceState[Any], *_: Any) -> None:
        values = state.obj().__dict__
        for key in keys:
            value = values.get(key)
            if isinstance(value, datetime) and value.tzinfo is not UTC:
                values[key] = as_utc(value)

    def assigned(target: Any, value: Any, *_: Any) -> Any:
        if isinstance(value, datetime) and value.tzinfo is None:
            raise ArgumentError(
                f"{value!r} has no time zone; use datetime.now(timezone.utc) or .astimezone()"
            )
        return value.astimezone(UTC) if isinstance(value, datetime) else value

    # raw: without a wrapper of SQLAlchemy, which would be another call for each loaded row.
    for loading in ("load", "refresh", "refresh_flush"):
        event.listen(mapping.entity, loading, loaded, raw=True)
    for key in keys:
        event.listen(getattr(mapping.entity, key), "set", assigned, retval=True)
