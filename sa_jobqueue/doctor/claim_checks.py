"""Checks of the claim: its index, its plan, and what one batch costs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..dialects.examination import Answer, Plan, ServerIndex
from ..indexes import index_of
from ..sessions import writing
from .case import OWNER, Case
from .report import Cost
from .wanted import compared_for_equality, range_before_order, said_order, same_predicate

#: A plan that reads no more rows than this, and so many a job, is good enough however it does.
FEW_ROWS = 1_000
FEW_ROWS_A_JOB = 10

#: Locks beside those of the claimed rows: gaps, entries of other indexes.
FEW_LOCKS = 50
FEW_LOCKS_A_JOB = 3

#: How long the claim that is rolled back waits for locks of others.
LOCK_WAIT = timedelta(seconds=2)

_CREATE_ONLINE = "(online: sa_jobqueue.migration.create_claim_index)"


# -- the index ----------------------------------------------------------


def check_index(case: Case) -> Iterator[Answer]:
    """Compare the database's indexes with the one that the claim wants."""
    ranged = range_before_order(case.spec)
    if ranged is not None:
        yield _rounds(case, ranged)
        return
    if case.wanted.order is None:
        return  # of an order by expressions only the plan tells
    serving = _serving(case)
    if serving:
        yield from _served(case, serving)
    elif case.fitting and case.possible.walks(_names(case.fitting)):
        yield from _served_by_another_predicate(case)
    else:
        yield Answer.error(_amiss(case), _mend(case))


def _serving(case: Case) -> list[ServerIndex]:
    """List the fitting indexes that are known to hold all the rows of the claim."""
    return [
        index
        for index in case.fitting
        if index.predicate is None or same_predicate(index.predicate, case.predicate)
    ]


def _served(case: Case, serving: list[ServerIndex]) -> Iterator[Answer]:
    if case.predicate is not None and all(index.predicate is None for index in serving):
        yield Answer.warning(
            f"{serving[0]} holds every row of the table, also the finished ones: it grows with "
            f"them. The claim wants WHERE {case.predicate}",
            _mend(case),
        )
    else:
        yield Answer(f"{serving[0]} fits the claim")


def _served_by_another_predicate(case: Case) -> Iterator[Answer]:
    index = case.fitting[0]
    if case.predicate is None:
        yield Answer(f"{index} fits the claim")
    else:
        yield Answer.warning(
            f"{index} serves the claim, which wants WHERE {case.predicate}: Alembic does not see "
            "that the predicate has changed",
            _mend(case),
        )


def _amiss(case: Case) -> str:
    """Say what is wrong with the index that comes nearest."""
    wanted = case.wanted
    named = [index for index in case.indexes if index.name == wanted.name]
    for index in [*named, *case.fitting]:
        if index.unusable:
            return f"{index} serves nobody: {index.unusable}"
        if index in case.fitting:
            wants = f", which wants WHERE {case.predicate}" if case.predicate else ""
            return f"the predicate of {index} does not fit the claim{wants}"
        return (
            f"{index} does not fit the claim, which wants {wanted}: rows are read, locked and "
            "sorted that it does not take"
        )
    return f"no index serves the claim, which wants {wanted}: it reads, and sorts, all that waits"


def _mend(case: Case) -> str:
    create = case.wanted.create_statement(case.connection.dialect)
    there = any(index.name == case.wanted.name for index in case.indexes)
    drop = f"drop {case.wanted.name}, then " if there else ""
    return f"{drop}{create} {_CREATE_ONLINE}"


def _rounds(case: Case, ranged: str) -> Answer:
    order = said_order(case.spec)
    columns = ", ".join([*compared_for_equality(case.spec), "round", order])
    return Answer.error(
        f"no index can serve ORDER BY {order} beside a range of {ranged}: an index bounded by the "
        "range gives its rows in the order of the range, so each claim sorts all that is due",
        f"claim in the order of {ranged}, or in none; or make rounds of it: keep in each row the "
        "number of the round that it is in, compare that for equality instead of the range, and "
        f"an index of ({columns}) serves both",
    )


# -- the plan -----------------------------------------------------------


def check_plan(case: Case) -> Iterator[Answer]:
    """Read from EXPLAIN whether the index serves the claim without a sort."""
    if range_before_order(case.spec) is not None:
        return  # the index's finding has said it
    try:
        chosen = case.chosen
    except DBAPIError as error:
        if error.orig is None or not case.database.is_missing_index(error.orig):
            raise
        yield Answer.error(
            f"the claim is bound to {case.wanted.name}, which is not there; without it, it locks "
            "more than it takes",
            _mend(case),
        )
        return
    names = _names(case.fitting)
    if chosen.walks(names):
        yield Answer(f"the claim walks {_joined(chosen.indexes & names)}, and sorts nothing")
    elif case.possible.walks(names):
        yield _not_chosen(case, chosen, names)
    else:
        yield from _not_possible(case)


def _not_chosen(case: Case, chosen: Plan, names: frozenset[str]) -> Answer:
    """Judge a planner that goes another way than by the index that serves."""
    way = f"goes by {_joined(chosen.indexes)}" if chosen.indexes else "reads the whole table"
    does = "sorts" if chosen.sorts else way
    few = FEW_ROWS + FEW_ROWS_A_JOB * case.limit
    if chosen.rows is not None and chosen.rows > few:
        return Answer.warning(
            f"the claim could walk {_joined(names)}, but {does}: {chosen.rows:,} rows by the "
            "planner's reckoning",
            _counted_anew(case),
        )
    return Answer(
        f"the planner thinks that so few rows wait that it {does}; with more, the claim walks "
        f"{_joined(names)}, and sorts nothing"
    )


def _counted_anew(case: Case) -> str:
    return (
        f"ANALYZE the table ({case.mapping.table.name}): the planner's figures are old, or there "
        "are none yet"
    )


def _not_possible(case: Case) -> Iterator[Answer]:
    plan = case.possible
    if plan.sorts:
        yield Answer.error(
            f"the claim sorts: no index gives its rows in the order {said_order(case.spec)}",
            _mend(case),
        )
    elif case.wanted.order is None:
        yield Answer(f"the claim walks {_joined(plan.indexes)}, and sorts nothing")
    elif _serving(case):
        way = f"it takes {_joined(plan.indexes)}" if plan.indexes else "it reads the whole table"
        yield Answer.error(
            f"the planner does not walk {_joined(_names(case.fitting))}, though it fits: {way}",
            _mend(case),
        )


def _names(indexes: list[ServerIndex]) -> frozenset[str]:
    return frozenset(index.name for index in indexes)


def _joined(names: frozenset[str]) -> str:
    return " and ".join(sorted(names))


# -- the cost -----------------------------------------------------------


def check_cost(case: Case) -> Iterator[Answer | Cost]:
    """Claim one batch, count the rows read and locked, and roll back."""
    if case.database.in_autocommit(case.connection):
        yield Answer.unchecked(
            "the connection is in AUTOCOMMIT, where a claim cannot be rolled back",
            "examine the queue by an engine without AUTOCOMMIT",
        )
        return
    with case.claiming() as session:
        claimed, read, locked = _claim(case, session)
    if locked is None and not case.database.one_writer:
        locked = claimed
    if isinstance(locked, int) and locked < claimed:
        locked = Answer.unchecked(
            "the database shows no locks of this transaction", "turn performance_schema on"
        )
    if isinstance(locked, Answer):
        yield locked
        locked = None
    yield Cost(claimed, read, locked)
    yield from _judged(case, claimed, read, locked)
    yield _said(case, claimed, read, locked)


def _claim(case: Case, session: Session) -> tuple[int, int | None, int | Answer | None]:
    examination, table = case.examination, case.mapping.table
    with writing(session, case.mapping) as writer:
        connection = writer.connection
    try:
        with examination.waiting_at_most(connection, LOCK_WAIT):
            before = examination.rows_read(connection, table)
            claim = case.queue.claim(session, owner=OWNER, limit=case.limit)
            after = examination.rows_read(connection, table)
            locked = examination.rows_locked(connection, table)
            read = None if before is None or after is None else after - before
            return len(claim), read, locked
    finally:
        session.rollback()


def _judged(case: Case, claimed: int, read: int | None, locked: int | None) -> Iterator[Answer]:
    if locked is not None and locked > FEW_LOCKS + FEW_LOCKS_A_JOB * claimed:
        yield Answer.error(
            f"to claim {claimed:,} jobs {locked:,} rows are locked: other claimers do not see "
            "them meanwhile",
            _cheaper(case),
        )
    if read is not None and read > FEW_ROWS + FEW_ROWS_A_JOB * case.limit:
        yield Answer.warning(
            f"to claim {claimed:,} jobs {read:,} rows are read",
            _cheaper(case),
        )


def _cheaper(case: Case) -> str:
    """Say what makes the claim read and lock less."""
    if not _serving(case):
        return _mend(case)
    first = ""
    if not case.chosen.walks(_names(case.fitting)):
        first = f"{_counted_anew(case)}. If it reads as much then, "
    return first + (
        "lead the claim index with the columns that the criteria compare for equality "
        '(__queue_args__["equality"]); rows that are told apart in another way are better off in '
        "tables, or under statuses, of their own"
    )


def _said(case: Case, claimed: int, read: int | None, locked: int | None) -> Answer:
    reads = "an unknown number of rows" if read is None else f"{read:,} rows"
    locks = case.examination.lock_words or (
        "an unknown number" if locked is None else f"{locked:,}"
    )
    return Answer(
        f"one batch of {case.limit:,} got {claimed:,} jobs; it reads {reads}, and locks {locks}"
    )


# -- updates in place ---------------------------------------------------


def check_updates(case: Case) -> Iterator[Answer]:
    """Name the user's indexes that hold what a claim writes."""
    if not case.examination.updates_in_place or not case.mapping.is_queue:
        return
    written = [
        case.mapping.column(role).name
        for role in ("status", "owner", "owner_date", "attempts")
        if case.mapping.has(role)
    ]
    ours = {case.wanted.name, *_own_names(case), *_names(case.fitting)}
    guilty = {
        index: [column for column in written if index.mentions(column)]
        for index in case.indexes
        if index.name not in ours
    }
    for index, columns in guilty.items():
        if columns:
            yield Answer.warning(
                f"{index} holds {' and '.join(columns)}, which claims and finishes write: it "
                "keeps PostgreSQL from HOT updates, and each of them adds an entry to it",
                f"drop {index.name} if the claim index does for its queries; else make it partial "
                "on a status that few rows have",
            )
    yield Answer(
        "the status is in the claim index, which rules out HOT updates: each claim and each finish "
        f"adds entries to those of the {len(case.indexes)} indexes that hold its row"
    )


def _own_names(case: Case) -> Iterator[str]:
    """Name the model's own indexes as they are called there, by a naming convention too."""
    preparer = case.connection.dialect.identifier_preparer
    for purpose in ("claim", "reap"):
        index = index_of(case.mapping.table, purpose)
        if index is not None:
            yield preparer.format_index(index).strip('"`')
