"""Where the queue's columns are in a user's mapped class.

No verb assumes the name of an attribute: it asks :func:`mapping_of` for the column that
has a role (``status``, ``owner``, ``priority``, ..) in a class::

    mapping = mapping_of(Order)
    mapping.attribute("status")        # Order.job_status
    mapping.column("status")           # the Column of the table
    mapping.word(JobStatus.UNCLAIMED)  # "unsent", where the table says so

A role without a column in a class is not used there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from operator import itemgetter
from typing import Any, TypeAlias, cast
from weakref import WeakKeyDictionary

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Date,
    DateTime,
    Enum,
    Integer,
    String,
    Table,
    Uuid,
    select,
)
from sqlalchemy import inspect as sa_inspect
from sqlalchemy.exc import NoInspectionAvailable
from sqlalchemy.orm import InstrumentedAttribute, Mapper
from sqlalchemy.sql.visitors import iterate

from ..databases import dialect_of
from ..errors import ArgumentError
from ..process import function_name
from .status import (
    CLAIMED,
    UNCLAIMED,
    JobStatus,
    QueueArgs,
    as_word,
    status_is,
    status_word,
    word_literal,
)

#: The roles of the claim order, as far as a class has columns for them; the primary key is
#: always the last.
ORDER_ROLES = ("round", "priority", "run_at")

#: The roles that hold points in time, which are read back as aware UTC.
TIME_ROLES = ("owner_date", "run_at", "expires_at")


#: Wakes a worker of this process: called with the connection that has made jobs claimable.
WakeCall: TypeAlias = Callable[[Connection], None]


class Head:
    """How often jobs came to stand before others that are claimed already; see `place.py`.

    Attributes:
        changes: verbs of this process that have put jobs there.
        notices: notifications of new jobs, which may stand there.
    """

    changes = notices = 0


#: The longest text column that lists of jobs show by themselves; TRACE says nothing to people.
SHORT, TRACE = 100, "traceparent"

#: The key in ``MetaData.info`` of what counts the members of groups.
GROUPS = "sa_jobqueue.groups"

_COUNTS_NOTHING = nullcontext()

_heads: WeakKeyDictionary[Table, Head] = WeakKeyDictionary()


class QueueMapping:
    """One mapped class seen as a queue: its table, keys, roles and words.

    It may be a class without JobMixin, for claims that write nothing: then it has keys and
    no roles.
    """

    def __init__(self, mapper: Mapper[Any]) -> None:
        self.mapper = mapper
        self.entity: type[Any] = mapper.class_
        self.args = QueueArgs.of(self.entity)
        #: The names of the attributes, by their roles.
        self.attributes: dict[str, str] = {}
        for base in reversed(self.entity.__mro__):
            self.attributes.update(vars(base).get("__queue_attributes__", {}))
        #: Whether the class has JobMixin's columns.
        self.is_queue = self.has("status")
        #: The roles of the mixins' claim order that the class has.
        self.order_roles = [role for role in ORDER_ROLES if self.has(role)]
        #: Whether the mixins' columns make a claim order: a queue's, or that of rounds alone.
        self.is_ordered = self.is_queue or self.has("round")
        #: The attributes that hold points in time.
        self.time_keys = tuple(self.attributes[role] for role in TIME_ROLES if self.has(role))
        #: The table's word for a claimed job.
        self.claimed = self.args.word(CLAIMED)
        #: The statuses that the claim index serves.
        self.ready = tuple(dict.fromkeys((self.args.word(UNCLAIMED), *self.args.ready)))
        #: The statuses of claimed jobs, which the reap index serves.
        self.during = tuple(dict.fromkeys((self.claimed, *self.args.during)))
        #: The status of jobs that wait for a group, if the class has one.
        self.waiting: tuple[str, ...] = () if self.args.waiting is None else (self.args.waiting,)
        # A subclass has the listeners of its parents, if somebody has asked for their mapping yet.
        parent = vars(mapper.inherits).get(_KEPT) if mapper.inherits is not None else None
        #: Who is told of events; see `events/`.
        self.listeners: tuple[Any, ...] = parent.listeners if parent else ()
        #: What wakes the workers of this process that claim from the class; see `wakeups/`.
        self.wake_calls: tuple[WakeCall, ...] = parent.wake_calls if parent else ()
        #: The plans of claims of all jobs of the class, by their strategies; see `verbs/claim.py`.
        self.plans: dict[str, Any] = {}
        #: Whether anybody wants to know of claimable jobs.
        self.wakes = self.args.notify or bool(self.wake_calls)

    def __str__(self) -> str:
        return self.entity.__name__

    @cached_property
    def head(self) -> Head:
        """What this process knows of the head of the table's queues."""
        return _heads.setdefault(self.table, Head())

    @cached_property
    def groups(self) -> Any:
        """What counts the members of groups, for a class with GroupMixin; see `groups/`."""
        return self.table.metadata.info[GROUPS] if self.has("group_id") else None

    def counting(self, writer: Any, keys: Iterable[Any]) -> AbstractContextManager[None]:
        """Count what a block does to jobs that are members of groups, in their transaction."""
        return _COUNTS_NOTHING if self.groups is None else self.groups.counting(writer, self, keys)

    # -- the table and its key ------------------------------------------

    @cached_property
    def table(self) -> Table:
        """The table that claims write to: the one that holds the status.

        Without a status, the table that holds the round; without either, the primary key.
        """
        written = [role for role in ("status", "round") if self.has(role)]
        column = self.column(written[0]) if written else self.mapper.primary_key[0]
        table = column.table
        if not isinstance(table, Table):
            raise ArgumentError(f"{self} is mapped to a query: claim the class of a table instead")
        return table

    @cached_property
    def keys(self) -> tuple[Column[Any], ...]:
        """The primary key columns of :attr:`table`, in the order of an identity."""
        mapped = self.mapper.primary_key
        if all(column.table is self.table for column in mapped):
            return tuple(column for column in mapped if isinstance(column, Column))
        return tuple(self.table.primary_key)  # the mixin is on a joined subclass

    @cached_property
    def key_attributes(self) -> tuple[InstrumentedAttribute[Any], ...]:
        """The mapped attributes of :attr:`keys`."""
        found = (self.mapper.get_property_by_column(column).key for column in self.keys)
        return tuple(getattr(self.entity, key) for key in found)

    @property
    def tables(self) -> int:
        """Over how many tables the rows of the class and its subclasses are spread."""
        mappers = self.mapper.self_and_descendants
        if len(mappers) == 1:
            return len(self.mapper.tables)
        own = [mapper for mapper in mappers if mapper is self.mapper or not mapper.concrete]
        return len({table for mapper in own for table in mapper.tables})

    @cached_property
    def one_table(self) -> bool:
        """Whether every column of an entity is in :attr:`table`."""
        return self.mapper.persist_selectable is self.table

    @cached_property
    def plain(self) -> bool:
        """Whether an entity has the columns of one table, and no computed ones."""
        return self.one_table and all(
            isinstance(column, Column) for column in self.mapper.columns.values()
        )

    def refuse_other_tables(self, where: Sequence[ColumnElement[bool]]) -> None:
        """Refuse criteria that add further tables: a join would return rows twice.

        Raises:
            ArgumentError: names the forms that work.
        """
        if where and len(select(*self.key_attributes).where(*where).get_final_froms()) > 1:
            raise ArgumentError(
                f"the criteria name other tables than that of {self}: use "
                "relationship.has(..), .any(..) or exists(), which join nothing"
            )

    def spread_over_tables(self, verb: str) -> ArgumentError:
        """Return the error of a verb that would delete a part of each row only."""
        return ArgumentError(
            f"the rows of {self} are spread over {self.tables} tables, and {verb}() deletes by "
            "one statement: keep them as done, and delete them with session.delete()"
        )

    # -- columns, by their roles ----------------------------------------

    def has(self, role: str) -> bool:
        """Tell whether the class has a column for a role."""
        return role in self.attributes

    def column(self, role: str) -> Column[Any]:
        """Return the table's column for a role."""
        column = self.mapper.columns[self.attributes[role]]
        assert isinstance(column, Column)
        return column

    def attribute(self, role: str) -> InstrumentedAttribute[Any]:
        """Return the mapped attribute for a role, for use in ORM statements."""
        return cast("InstrumentedAttribute[Any]", getattr(self.entity, self.attributes[role]))

    @cached_property
    def onupdate_keys(self) -> tuple[str, ...]:
        """The attributes that change with an UPDATE of their row that names other columns.

        A column_property over the queue's columns is one: it was read before the UPDATE.
        """
        ours = set(map(self.column, self.attributes))
        # Where no generator counts up the version, the server does, such as PostgreSQL's xmin.
        version = None if self.mapper.version_id_generator else self.mapper.version_id_col

        def changes(column: ColumnElement[Any]) -> bool:
            if not isinstance(column, Column):
                return not ours.isdisjoint(iterate(column))
            return bool(column.onupdate or column.server_onupdate or column is version)

        attributes = self.mapper.column_attrs
        return tuple(each.key for each in attributes if any(map(changes, each.columns)))

    @cached_property
    def written_keys(self) -> list[str]:
        """The attributes that a verb's write may change."""
        return [*self.attributes.values(), *self.onupdate_keys]

    @cached_property
    def text_keys(self) -> tuple[str, ...]:
        """The attributes that tell people which job it is, beside its key."""
        return tuple(getattr(self.entity, "__job_text__", ()))

    def text_of(self, values: Mapping[str, Any]) -> str | None:
        """Say which job has these values of its attributes; None: only its key tells."""
        if not self.text_keys or not all(key in values for key in self.text_keys):
            return None
        text: str = cast(Any, self.entity).job_text(*map(values.__getitem__, self.text_keys))
        return text

    @cached_property
    def shown_keys(self) -> tuple[str, ...]:
        """The attributes that lists of jobs show: as declared, else the first short texts."""
        names = self.args.web_columns
        if names is not None:
            return tuple(_attribute(self.entity, "web_columns", name).key for name in names)
        known = {*self.attributes.values(), *(each.key for each in self.key_attributes), TRACE}
        short = [
            each.key
            for each in self.mapper.column_attrs
            if each.key not in known
            and not each.deferred
            and isinstance(kind := each.columns[0].type, String)
            and (kind.length or SHORT + 1) <= SHORT
        ]
        return self.text_keys or tuple(short[:2])

    def check_shown(self) -> None:
        """Refuse ``web_columns`` that are no attributes of the class."""
        for name in self.args.web_columns or ():
            _attribute(self.entity, "web_columns", name)

    def shown_text(self, values: Mapping[str, Any]) -> str | None:
        """Write these values of a job for a list; None: there are none."""
        if self.shown_keys == self.text_keys:
            return self.text_of(values)
        shown = [values[key] for key in self.shown_keys if values.get(key) is not None]
        return " · ".join(map(str, shown)) or None

    # -- statuses -------------------------------------------------------

    def word(self, status: JobStatus) -> str:
        """Return the table's own word for a status."""
        return self.args.names[status]

    def literal(self, word: str) -> ColumnElement[Any]:
        """Return a status word as an SQL literal that the status column takes."""
        return word_literal(word, self.column("status").type)

    @property
    def status_word(self) -> ColumnElement[str]:
        """The status in a SELECT, read as the table's own word."""
        return as_word(self.attribute("status"))

    def shown(self, word: str) -> Any:
        """Return what an entity shows for a status word: a member, if its type is such an Enum."""
        return self._members.get(word, word)

    def told(self, shown: Any) -> Any:
        """Return the status word of what an entity shows."""
        return next((word for word, member in self._members.items() if member is shown), shown)

    @cached_property
    def _members(self) -> Mapping[str, Any]:
        """What an entity shows for each value of an Enum."""
        type_: Any = self.column("status").type
        words = getattr(type_, "enums", ())
        read: Any = type_.result_processor(dialect_of("sqlite"), None) if words else None
        return {word: read(word) for word in words}

    def check_word(self, word: str) -> None:
        """Refuse a word that the status column cannot hold.

        Raises:
            ArgumentError: longer than the column, or not among the values of its Enum.
        """
        type_, name = self.column("status").type, f"{self}.{self.attributes['status']}"
        length = getattr(type_, "length", None)
        if isinstance(type_, Enum) and word not in type_.enums:
            raise ArgumentError(
                f"{word!r} is not among the values of {name}, which are {', '.join(type_.enums)}: "
                "name the table's words in __queue_args__ = {'names': {'unclaimed': ..}}, or add "
                "the value to the enum"
            )
        if length is not None and len(word) > length:
            raise ArgumentError(
                f"{word!r} is longer than {name}, {type_!r}: make the column longer, or use a "
                "shorter word"
            )

    def has_status(self, *words: str) -> ColumnElement[bool]:
        """Return the criterion that a row has one of these statuses, as literals."""
        return status_is(self.attribute("status"), *words)

    def in_progress(self, during: str) -> tuple[str, ...]:
        """Return the statuses that a job may have while a claim that wrote `during` lasts.

        The application may move its claimed job from one to another. In a class that is claimed
        from several statuses, as by the steps of a workflow, each queue has its own: the status
        tells which queue a job goes back to.
        """
        shared = during in self.during and len(self.ready) == 1
        return self.during if shared else (during,)

    # -- the claim order, and what leads its index ----------------------

    @cached_property
    def order(self) -> tuple[ColumnElement[Any], ...]:
        """The claim order, without the primary key at its end."""
        if self.args.order_by is not None:
            return tuple(map(self._ordering, self.args.order_by))
        return tuple(cast(Any, self.attribute(role)) for role in self.order_roles)

    def _ordering(self, word: str) -> ColumnElement[Any]:
        name, _, given = word.partition(" ")
        attribute: Any = _attribute(self.entity, "order_by", name)
        direction = given.strip().lower()
        if direction not in ("", "asc", "desc"):
            raise ArgumentError(
                f"{self.entity.__name__}.__queue_args__['order_by']: {word!r} should be an "
                "attribute's name, followed by ' desc' if the largest comes first"
            )
        return cast("ColumnElement[Any]", attribute.desc() if direction == "desc" else attribute)

    @cached_property
    def order_attributes(self) -> tuple[str, ...]:
        """The attributes of the mixins' claim order, the primary key last."""
        roles = (self.attributes[role] for role in self.order_roles)
        return (*roles, *(attribute.key for attribute in self.key_attributes))

    @cached_property
    def sorts_in_python(self) -> bool:
        """Whether Python sorts the columns of the mixins' claim order as the database does."""
        kinds = (Integer, DateTime, Date, Uuid, String)
        types = [column.type for column in (*self._order_columns, *self.keys)]
        return all(isinstance(kind, kinds) and not isinstance(kind, Enum) for kind in types)

    @property
    def _order_columns(self) -> list[Column[Any]]:
        return [self.column(role) for role in self.order_roles]

    @cached_property
    def equality(self) -> tuple[InstrumentedAttribute[Any], ...]:
        """The attributes that lead the claim index."""
        return tuple(_attribute(self.entity, "equality", name) for name in self.args.equality)

    @cached_property
    def per_key(self) -> tuple[tuple[InstrumentedAttribute[Any], ...], ...]:
        """The serial keys that have an index, by which the next job of each value is found."""
        return tuple(
            tuple(_attribute(self.entity, "per_key", name) for name in names)
            for names in self.args.per_key
        )

    # -- ordinals of columns, in a plain row of the table ----------------

    @cached_property
    def key_of_row(self) -> itemgetter[Any]:
        """Returns the primary key from a plain row of :attr:`table`, bare if it is one column."""
        return itemgetter(*self._ordinals(self.keys))

    @cached_property
    def owner_date_of_row(self) -> itemgetter[Any]:
        """Returns the owner_date from a plain row of :attr:`table`."""
        return itemgetter(*self._ordinals([self.column("owner_date")]))

    @cached_property
    def order_ordinals(self) -> tuple[int, ...]:
        """The ordinals of the mixins' claim order in a plain row, the primary key last."""
        return self._ordinals([*self._order_columns, *self.keys])

    @cached_property
    def round_ordinal(self) -> int:
        """The ordinal of the round in a plain row of :attr:`table`."""
        return self._ordinals([self.column("round")])[0]

    def _ordinals(self, columns: Sequence[Column[Any]]) -> tuple[int, ...]:
        ordinals = {column: ordinal for ordinal, column in enumerate(self.table.c)}
        return tuple(ordinals[column] for column in columns)


#: Where a mapper keeps its mapping. A WeakKeyDictionary of mappers would never free one, since
#: the mapping holds its mapper.
_KEPT = "_sa_jobqueue_mapping"


def mapping_of(entity: Any) -> QueueMapping:
    """Return the queue mapping of a mapped class.

    Raises:
        ArgumentError: not a mapped class, or a class without JobMixin.
    """
    mapping = any_mapping_of(entity)
    if not mapping.is_queue:
        raise ArgumentError(f"{mapping} is not a queue: add JobMixin to its bases")
    return mapping


def any_mapping_of(entity: Any) -> QueueMapping:
    """Return the mapping of a mapped class, with JobMixin or without.

    Raises:
        ArgumentError: not a mapped class.
    """
    try:
        mapper = sa_inspect(entity)
    except NoInspectionAvailable as error:
        raise ArgumentError(_no_class(entity)) from error
    if not isinstance(mapper, Mapper):
        raise ArgumentError(f"a mapped class is needed, not {entity!r}")
    kept = vars(mapper)
    if _KEPT not in kept:
        kept.setdefault(_KEPT, QueueMapping(mapper))
    mapping: QueueMapping = kept[_KEPT]
    return mapping


def _no_class(given: Any) -> str:
    """Say what was given in the place of a mapped class, and the way out."""
    queue = getattr(given, "sync_queue", getattr(given, "queue", given))
    mapping = getattr(queue, "mapping", None)
    if isinstance(mapping, QueueMapping):
        return (
            f"{given!r} is a queue, not a mapped class: call its method of the same name, as in "
            f"queue.stats(session), or give the class {mapping}"
        )
    return f"{function_name(given)} is not a mapped class"


def word_of(mapping: QueueMapping, status: str) -> str:
    """Return the table's word for a JobStatus; a status of the user's own is returned as it is."""
    if isinstance(status, JobStatus):
        return mapping.args.names[status]
    if not mapping.is_queue:
        return status_word(status)
    word = status_word(mapping.told(status))
    mapping.check_word(word)
    return word


def counting_together(
    session: Any, mappings: Iterable[QueueMapping]
) -> AbstractContextManager[None]:
    """Count members of groups at the end of a block, which calls several verbs.

    Each group is then written once, and in the order of all transactions.
    """
    groups = next((mapping.groups for mapping in mappings if mapping.groups is not None), None)
    return _COUNTS_NOTHING if groups is None else groups.together(session)


def _attribute(entity: type, option: str, name: str) -> InstrumentedAttribute[Any]:
    attribute = getattr(entity, name, None)
    if not isinstance(attribute, InstrumentedAttribute):
        raise ArgumentError(
            f"{entity.__name__}.__queue_args__[{option!r}] names {name!r}, which is not a "
            f"mapped attribute of {entity.__name__}"
        )
    return attribute
