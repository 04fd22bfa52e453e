"""Groups: a job that runs when others have ended.

::

    class Part(GroupMixin, RetryMixin, JobMixin, Base): ...

    class Report(WaitingMixin, JobMixin, Base): ...

    with Session(engine) as session, session.begin():
        parts = [Part(page=page) for page in range(50)]
        after(session, parts, then=Report(), on_failure="wait")

The verbs that end or reopen jobs count members in their own transactions. They write to members,
then to their groups, then to what waits for these, each in the order of keys: so members that end
at once do not deadlock. The UPDATE of a group's row makes its finishes go one after the other. The
last of them sees that nothing is left, and lets the job go on that waits.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Integer,
    Join,
    MetaData,
    Row,
    String,
    Table,
    Text,
    Update,
    and_,
    bindparam,
    event,
    func,
    inspect,
    literal,
    or_,
    select,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import Mapped, Mapper, Session, object_session
from sqlalchemy.orm.attributes import set_attribute

from .databases import database_of
from .databases.clock import as_utc, utc_now
from .errors import ArgumentError
from .fence.claim import jobs_with_keys
from .fence.statements import lock_rows
from .fence.token import Identity
from .model.columns import FROM_TEXT, timestamp_type
from .model.keys import key_json
from .model.mapping import GROUPS, QueueMapping, any_mapping_of, mapping_of
from .model.mixins import QueueColumns, declares
from .model.status import CANCELLED, DONE, FAILED, UNCLAIMED, JobStatus, status_is, status_is_not
from .model.transitions import FINISHED, reset
from .sessions.transactions import missing_tables_named
from .sessions.writer import AnySession, Writer, session_of, writer_for, writing
from .verbs.manage import change, move

__all__ = [
    "Group",
    "GroupMixin",
    "GroupProgress",
    "WaitingMixin",
    "add_to_group",
    "after",
    "group_progress",
    "group_table",
    "recount",
]

log = logging.getLogger("sa_jobqueue.groups")

#: What a member counts as, by the name of the column that has their number.
UNFINISHED = "unfinished"
KINDS = (UNFINISHED, str(FAILED), str(DONE))

#: What members that have ended count as.
KIND_OF = {DONE: DONE, FAILED: FAILED, CANCELLED: FAILED}

#: How long the row of a group stays after what waited for it went on.
KEPT = timedelta(days=30)

#: Among so many groups, the newest, one that a job waits for is looked up.
LOOK = 10_000

#: The most groups that are corrected, or forgotten, at once.
MOST = 1_000

_TOGETHER = "sa_jobqueue.groups"


@declares("group_id")
class GroupMixin(QueueColumns):
    """Add ``group_id``: the group that the job is a member of; see :func:`after`."""

    if TYPE_CHECKING:
        group_id: Mapped[int | None]


class WaitingMixin(QueueColumns):
    """Add a status in which jobs wait for a group: ``waiting``. No claim and no reap sees it.

    ``__queue_args__ = {"waiting": "on hold"}`` gives it another word.
    """

    __queue_waiting__: ClassVar[str] = "waiting"


def group_table(
    metadata: MetaData, name: str = "job_groups", *, schema: str | None = None
) -> Table:
    """Return the table of groups in a MetaData; the first call adds it.

    The first class with GroupMixin or WaitingMixin adds it, too. Call this before, if the table is
    to have another name.

    Raises:
        InvalidRequestError: the metadata has another table of this name.
    """
    if GROUPS not in metadata.info:
        made = Table(
            name,
            metadata,
            # SQLite numbers INTEGER keys alone.
            Column("id", BigInteger().with_variant(sqlite.INTEGER(), "sqlite"), primary_key=True),
            Column("then_table", String(150), nullable=False),
            Column("then_key", Text, nullable=False),
            Column("on_failure", String(8), nullable=False),
            Column("member_tables", Text, nullable=False),
            *(Column(kind, Integer, nullable=False) for kind in KINDS),
            Column("settled_at", timestamp_type()),
            schema=schema,
            sqlite_autoincrement=True,  # no second group gets the number of one that was forgotten
        )
        metadata.info[GROUPS] = Groups(made)
    groups: Groups = metadata.info[GROUPS]
    return groups.table


@event.listens_for(QueueColumns, "after_mapper_constructed", propagate=True)
def _register(mapper: Mapper[Any], class_: type[Any]) -> None:
    """Let the groups of the metadata know a class of members, or of jobs that wait."""
    mapping = QueueMapping(mapper)
    is_concerned = mapping.has("group_id") or mapping.waiting
    if not is_concerned or not isinstance(mapper.local_table, Table | Join):
        return  # the table of an AbstractConcreteBase is neither
    if not mapping.is_queue:
        raise ArgumentError(f"{mapping} is not a queue: add JobMixin to its bases")
    if mapping.has("group_id") and mapping.column("group_id").table is not mapping.table:
        raise ArgumentError(f"{mapping} needs GroupMixin in the class that has JobMixin")
    group_table(mapping.table.metadata)
    groups: Groups = mapping.table.metadata.info[GROUPS]
    if mapping.table.fullname not in groups.classes:
        groups.classes[mapping.table.fullname] = class_
        if mapping.has("group_id"):
            event.listen(class_, "before_delete", groups.before_delete, propagate=True)


@dataclass(frozen=True)
class Group:
    """A group.

    Attributes:
        entity: a class of its metadata, which has its table.
        id: its number, as in the ``group_id`` of its members.
    """

    entity: type[Any]
    id: int


@dataclass(frozen=True)
class GroupProgress:
    """How far a group is.

    Attributes:
        unfinished: how many members are neither done, failed nor cancelled.
        failed: how many are failed or cancelled.
        done: how many are done, or were deleted.
        settled_at: when the job that waited went on, or was cancelled; None: it waits.
    """

    unfinished: int
    failed: int
    done: int
    settled_at: datetime | None

    @property
    def total(self) -> int:
        """How many members the group has had."""
        return self.unfinished + self.failed + self.done


def after(
    session: AnySession,
    parts: Iterable[Any],
    then: Any,
    on_failure: Literal["wait", "run", "cancel"] = "wait",
) -> Group:
    """Add jobs, and one that waits until they have ended; flush them.

    Args:
        session: the caller's; nothing is committed.
        parts: entities with GroupMixin, of one class or several, which are in no group yet. If
            there are none, `then` can be claimed at once.
        then: an entity of a class with WaitingMixin, new or unclaimed; it waits for one group. It
            may be a member of another group.
        on_failure: what becomes of `then` if members fail for good, or are cancelled. ``"wait"``:
            it waits until they are retried and done, or deleted; ``"run"``: it runs when all have
            ended; ``"cancel"``: the first one cancels it.

    Raises:
        ArgumentError: entities of other classes, or that are members already, or a session under
            AUTOCOMMIT; nothing was written. Or `then` waits already, is claimed or has ended.
        MissingTable: the database does not have the table of groups.
    """
    session, jobs, mapping = session_of(session), list(parts), mapping_of(type(then))
    if on_failure not in ("wait", "run", "cancel"):
        raise ArgumentError(f"on_failure= is 'wait', 'run' or 'cancel', not {on_failure!r}")
    if not mapping.waiting:
        raise ArgumentError(f"{mapping} has no status for jobs that wait: add WaitingMixin")
    groups = _groups_of(mapping)
    _check(session, groups, jobs, then)
    with missing_tables_named(lambda: [groups.table]):
        _put_to_wait(session, groups, mapping, then)
        key = key_json(identity := jobs_with_keys(then)[0][2])
        if _key_of(mapping, key) != identity:
            raise ArgumentError(f"{then!r} cannot wait: {key} does not tell its key {identity!r}")
        new = groups.table.insert().values(
            then_table=mapping.table.fullname,
            then_key=key,
            on_failure=on_failure,
            member_tables="[]",
            **dict.fromkeys(KINDS, 0),
        )
        with writing(session, mapping) as writer:
            made: Any = writer.core(new).inserted_primary_key
        group = Group(mapping.entity, made.id)
        _add(session, groups, group, jobs)
    return group


def add_to_group(session: AnySession, group: Group, parts: Iterable[Any]) -> None:
    """Add members to a group whose `then` still waits, and flush them.

    A handler may add members to the group of its own job: ``Group(Part, part.group_id)``.

    Args:
        parts: as for :func:`after`.

    Raises:
        ArgumentError: as for :func:`after`; or the group has let `then` go on: roll back.
    """
    session, groups, jobs = session_of(session), _groups_of(mapping_of(group.entity)), list(parts)
    _check(session, groups, jobs)
    _add(session, groups, group, jobs)


def group_progress(session: AnySession, group: Group) -> GroupProgress:
    """Tell how far a group is, by one row.

    Raises:
        ArgumentError: there is no such group; they are forgotten 30 days after they were settled.
    """
    mapping = mapping_of(group.entity)
    table = _groups_of(mapping).table
    with writing(session, mapping, reads=True) as writer:
        row = writer.core(select(table).where(table.c.id == group.id)).one_or_none()
    if row is None:
        raise ArgumentError(f"there is no group {group.id}")
    settled_at = row.settled_at and as_utc(row.settled_at)
    return GroupProgress(row.unfinished, row.failed, row.done, settled_at)


def progress_of_all(session: AnySession, entity: type[Any]) -> tuple[int, GroupProgress]:
    """Add up the groups of a metadata that something waits for, of the newest 10,000.

    Returns:
        How many they are, and the sums.
    """
    mapping = mapping_of(entity)
    table = _groups_of(mapping).table
    newest = select(func.max(table.c.id)).scalar_subquery()
    sums = (func.coalesce(func.sum(table.c[kind]), 0) for kind in KINDS)
    found = select(func.count(), *sums).where(
        table.c.id > newest - LOOK, table.c.settled_at.is_(None)
    )
    with writing(session, mapping, reads=True) as writer:
        number, unfinished, failed, done = map(int, writer.core(found).one())
    return number, GroupProgress(unfinished, failed, done, None)


def group_before(session: AnySession, entity: type[Any], key: tuple[Any, ...]) -> Group | None:
    """Return the group that a job waits for, of the newest 10,000; None: it waits for none.

    Args:
        key: the primary key of the job.
    """
    mapping = mapping_of(entity)
    table = _groups_of(mapping).table
    newest = select(func.max(table.c.id)).scalar_subquery()
    found = select(table.c.id).where(
        table.c.id > newest - LOOK,
        table.c.settled_at.is_(None),
        table.c.then_table == mapping.table.fullname,
        table.c.then_key == key_json(key),
    )
    with writing(session, mapping, reads=True) as writer:
        row = writer.core(found).first()
    return None if row is None else Group(entity, row.id)


def _groups_of(mapping: QueueMapping) -> Groups:
    groups: Groups | None = mapping.table.metadata.info.get(GROUPS)
    if groups is None:
        raise ArgumentError(f"{mapping} has no groups: add GroupMixin to its bases")
    return groups


def _check(session: Session, groups: Groups, parts: Iterable[Any], then: Any = None) -> None:
    for part in parts:
        mapping = mapping_of(type(part))
        if writer_for(session, mapping).in_autocommit:
            raise ArgumentError("under AUTOCOMMIT members could end before they are counted")
        if mapping.groups is not groups or part is then:
            raise ArgumentError(
                f"{part!r} cannot be a member: its class needs GroupMixin, and the metadata that "
                "the others have; and a job does not wait for itself"
            )
        if (known := getattr(part, mapping.attributes["group_id"])) is not None:
            raise ArgumentError(f"{part!r} is a member of group {known} already")


def _put_to_wait(session: Session, groups: Groups, mapping: QueueMapping, then: Any) -> None:
    (waiting,) = mapping.waiting
    ready = [mapping.word(UNCLAIMED)]
    if (identity := inspect(then).identity) is None:
        set_attribute(then, mapping.attributes["status"], mapping.shown(waiting))
        session.add(then)
        session.flush()
        return
    with writing(session, mapping) as writer:
        writer.lock_writes(groups.table)
        others = groups.open_for(writer, mapping, key_json(identity))
    with session.begin_nested() if others else nullcontext():
        for other in others:  # before it waits: a finish locks groups first, too
            writer.core(groups.settled(other))
        if not change(session, then, "signal", reset, leaving=ready, to=waiting):
            raise ArgumentError(f"{then!r} cannot wait: it is claimed, has ended or waits already")


def _add(session: Session, groups: Groups, group: Group, parts: list[Any]) -> None:
    there = [part for part in parts if inspect(part).identity is not None]
    with writing(session, mapping_of(group.entity)) as writer:
        for mapping, identities in _by_class(there).items():  # others may have been quicker
            for known, _ in members(writer, mapping, identities).values():
                raise ArgumentError(f"one of the {mapping} is a member of group {known} already")
    for part in parts:
        set_attribute(part, mapping_of(type(part)).attributes["group_id"], group.id)
    session.add_all(parts)
    with writing(session, mapping_of(group.entity)) as writer, writer.atomically():
        keys = _by_class(parts)
        counts = Counter({(group.id, UNFINISHED): 0})
        for mapping, of_class in keys.items():  # some may have ended before
            counts.update(members(writer, mapping, of_class).values())
        row = next(iter(groups.add(writer, counts)), None)
        if row is None or row.settled_at is not None:
            raise ArgumentError(f"nothing waits for group {group.id} any more: roll back")
        tables = {*json.loads(row.member_tables), *(mapping.table.fullname for mapping in keys)}
        here = groups.table.update().where(groups.table.c.id == group.id)
        writer.core(here.values(member_tables=json.dumps(sorted(tables))))


def _by_class(parts: Iterable[Any]) -> dict[QueueMapping, list[Identity]]:
    keys: dict[QueueMapping, list[Identity]] = {}
    for _, mapping, identity in jobs_with_keys(parts):
        keys.setdefault(mapping, []).append(identity)
    return keys


# -- how members are counted --------------------------------------------------


class Groups:
    """The groups of one MetaData.

    Attributes:
        table: has a row for each group.
        classes: those of members and of what waits for them, by the names of their tables.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.classes: dict[str, type[Any]] = {}

    # -- for the verbs --------------------------------------------------

    @contextmanager
    def counting(
        self, writer: Writer, mapping: QueueMapping, keys: Iterable[Identity]
    ) -> Iterator[None]:
        """Count what a block does to jobs. A member that is gone counts as done."""
        before = members(writer, mapping, keys)
        yield
        self._count(writer, before, members(writer, mapping, before))

    @contextmanager
    def together(self, session: Any) -> Iterator[None]:
        """Write to groups once, at the end of the block."""
        if _TOGETHER in session.info:
            yield
            return
        noted: dict[Connection, tuple[Writer, Counter[Any]]] = {}
        session.info[_TOGETHER] = noted
        try:
            yield
        finally:
            del session.info[_TOGETHER]
        for writer, counts in noted.values():
            self.add(writer, counts)

    def before_delete(self, mapper: Mapper[Any], connection: Connection, entity: Any) -> None:
        """Count a member that ``session.delete()`` deletes."""
        database = database_of(connection)
        in_autocommit = database.in_autocommit(connection)
        writer = Writer(object_session(entity), connection, database, in_autocommit, mapper)
        key = tuple(mapper.primary_key_from_instance(entity))
        self._count(writer, members(writer, any_mapping_of(mapper), [key]), {})

    def _count(
        self,
        writer: Writer,
        before: Mapping[Identity, tuple[int, str]],
        after: Mapping[Identity, tuple[int, str]],
    ) -> None:
        counts: Counter[tuple[int, str]] = Counter()
        for key, (group, kind) in before.items():
            counts[group, kind] -= 1
            counts[after.get(key, (group, DONE))] += 1
        counts = Counter({each: number for each, number in counts.items() if number})
        noted = (writer.of_session or writer.connection).info.get(_TOGETHER)
        if noted is None or writer.in_autocommit:
            self.add(writer, counts)
        else:
            noted.setdefault(writer.connection, (writer, Counter()))[1].update(counts)

    # -- the groups' rows -----------------------------------------------

    def add(self, writer: Writer, counts: Counter[tuple[int, str]]) -> list[Row[Any]]:
        """Add to the counts of groups; let what waits go on where nothing is left.

        Returns:
            The groups' rows, as they were before anything went on.
        """
        ids = sorted({group for group, _ in counts})
        rows = [row for id_ in ids if (row := self._add_to(writer, id_, counts)) is not None]
        for row in sorted(rows, key=lambda row: (row.then_table, row.then_key)):
            if row.settled_at is None and (after := _fate(row)) is not None:
                self._settle(writer, row, after)
        return rows

    def _add_to(self, writer: Writer, id_: int, counts: Counter[Any]) -> Row[Any] | None:
        """Write the counts of a group, and return its row; None: it was forgotten."""
        columns, given = self.table.c, {f"more_{kind}": counts[id_, kind] for kind in KINDS}
        here = columns.id == bindparam("group")
        more = {kind: columns[kind] + bindparam(f"more_{kind}") for kind in KINDS}
        changed = self.table.update().where(here).values(more)
        if writer.database.update_returning:
            found = writer.core(changed.returning(*columns), {"group": id_, **given})
        else:
            writer.core(changed, {"group": id_, **given})
            found = writer.core(select(self.table).where(here), {"group": id_})
        return found.one_or_none()

    def _settle(self, writer: Writer, row: Row[Any], after: JobStatus) -> None:
        """Let the job that waits go on, or cancel it: once for each group."""
        if row.then_table not in self.classes:
            text = "group %d is over; a worker that knows the table %s lets its job go on"
            log.warning(text, row.id, row.then_table)
            return
        writer.core(self.settled(row.id))
        mapping = mapping_of(self.classes[row.then_table])
        key, final = _key_of(mapping, row.then_key), after is CANCELLED
        for waiting in mapping.waiting:
            move(writer, mapping, key, waiting, mapping.word(after), final=final)

    def settled(self, id_: int) -> Update:
        """Return the UPDATE of a group for which nothing waits any more."""
        return self.table.update().where(self.table.c.id == id_).values(settled_at=utc_now())

    def open_for(self, writer: Writer, mapping: QueueMapping, key: str) -> Sequence[int]:
        """Return the groups that a job waited for when it was cancelled; they let it go no more."""
        columns = self.table.c
        of_job = (columns.then_table == mapping.table.fullname, columns.then_key == key)
        found = select(columns.id).where(*of_job, columns.settled_at.is_(None)).order_by(columns.id)
        return writer.core(found).scalars().all()

    def wrong(self, writer: Writer) -> list[Row[Any]]:
        """Read open groups whose counts differ from their rows, or that are over, in one moment.

        Groups with a class that this process does not know are left out: it would count too few.
        """
        known = {name: mapping_of(entity) for name, entity in self.classes.items()}
        columns = self.table.c
        number: dict[str, ColumnElement[int]] = {UNFINISHED: literal(0), FAILED: literal(0)}
        for mapping in (mapping for mapping in known.values() if mapping.groups is not None):
            status, word = mapping.column("status"), mapping.word
            ours = select(func.count()).where(mapping.column("group_id") == columns.id)
            unfinished = status_is_not(status, *map(word, FINISHED))
            number[UNFINISHED] += ours.where(unfinished).scalar_subquery()
            failed = status_is(status, word(FAILED), word(CANCELLED))
            number[FAILED] += ours.where(failed).scalar_subquery()
        counted = select(self.table, *(each.label(f"{kind}_now") for kind, each in number.items()))
        groups = counted.where(columns.settled_at.is_(None)).subquery("sa_jobqueue_groups")
        now = groups.c
        is_over = and_(now.unfinished_now == 0, or_(now.failed_now == 0, now.on_failure == "run"))
        differs = (now[kind] != now[f"{kind}_now"] for kind in number)
        rows = writer.core(
            select(groups).where(or_(is_over, *differs)).order_by(now.id).limit(MOST)
        )
        return [it for it in rows if known.keys() >= {it.then_table, *json.loads(it.member_tables)}]


def _fate(row: Row[Any]) -> JobStatus | None:
    """Return what the job becomes that waits for a group; None: it goes on waiting."""
    if row.failed and row.on_failure == "cancel":
        return CANCELLED
    return UNCLAIMED if not row.unfinished and (not row.failed or row.on_failure == "run") else None


def _key_of(mapping: QueueMapping, text: str) -> Identity:
    """Read a primary key that key_json() has written."""
    given = zip(mapping.keys, json.loads(text), strict=True)
    readers = ((FROM_TEXT.get(key.type.python_type), value) for key, value in given)
    return tuple(value if read is None else read(value) for read, value in readers)


def members(
    writer: Writer, mapping: QueueMapping, keys: Iterable[Identity]
) -> dict[Identity, tuple[int, str]]:
    """Lock those of the jobs that are members; return the group of each, and what it counts as."""
    if not (identities := [*keys]):
        return {}
    writer.lock_writes(mapping.table)
    kinds = {mapping.word(status): kind for status, kind in KIND_OF.items()}
    found = lock_rows(writer, mapping, ("group_id", "status"), identities).items()
    told = ((key, group, mapping.told(shown)) for key, (group, shown) in found)
    return {key: (group, kinds.get(word, UNFINISHED)) for key, group, word in told if group}


# -- what plain SQL has changed -----------------------------------------------


def recount(session: AnySession, entity: type[Any]) -> list[Group]:
    """Correct the counts of groups whose members plain SQL has changed; return these groups.

    A worker does this every five minutes. It also forgets groups 30 days after they were settled.

    Args:
        session: the caller's; nothing is committed.
        entity: a class of their metadata.
    """
    mapping = mapping_of(entity)
    groups, corrected = _groups_of(mapping), []
    columns = groups.table.c
    with writing(session, mapping) as writer, writer.atomically():
        writer.lock_writes(groups.table)
        for row in groups.wrong(writer):
            # Counts and rows were read at once. If a verb has counted since, another call corrects.
            same = [columns[name] == getattr(row, name) for name in ("id", *KINDS)]
            more = row.unfinished + row.failed - row.unfinished_now - row.failed_now
            now = {UNFINISHED: row.unfinished_now, FAILED: row.failed_now, DONE: row.done + more}
            mended = groups.table.update().where(*same, columns.settled_at.is_(None)).values(now)
            if writer.core(mended).rowcount:
                groups.add(writer, Counter({(row.id, UNFINISHED): 0}))
                corrected.append(Group(entity, row.id))
        long_ago = utc_now(-(KEPT // timedelta(microseconds=1)))
        old = select(columns.id).where(columns.settled_at < long_ago).limit(MOST)
        if ids := writer.core(old).scalars().all():
            writer.core(groups.table.delete().where(columns.id.in_(ids)))
    return corrected
