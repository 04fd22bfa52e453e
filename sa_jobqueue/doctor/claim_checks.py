"""Checks of what a claim costs: rows read and locked for a batch, and new index entries."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from sqlalchemy.orm import Session

from ..dialects.examination import Answer
from ..model.indexes import index_of, key_index
from ..sessions.writer import writing
from .case import OWNER, Case
from .index_checks import FEW_ROWS, FEW_ROWS_A_JOB, analyze_fix, index_fix, names_of
from .report import Cost
from .wanted_index import lacks_criterion, name_of, range_before_order

#: A claim may lock so much beside its rows: gaps, and entries of other indexes.
FEW_LOCKS = 50
FEW_LOCKS_A_JOB = 3

#: How long the claim that is rolled back waits for locks.
LOCK_WAIT = timedelta(seconds=2)

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
        claimed, read, locked = _claim_and_count(case, session)
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
    yield from _too_costly(case, claimed, read, locked)
    yield _cost_answer(case, claimed, read, locked)


def _claim_and_count(case: Case, session: Session) -> tuple[int, int | None, int | Answer | None]:
    examination, table = case.examination, case.mapping.table
    with writing(session, case.mapping, reads=True) as writer:
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


def _too_costly(case: Case, claimed: int, read: int | None, locked: int | None) -> Iterator[Answer]:
    if locked is not None and locked > FEW_LOCKS + FEW_LOCKS_A_JOB * claimed:
        yield Answer.error(
            f"a claim of {_jobs(claimed)} locks {locked:,} rows, and other claims skip all of them",
            _cost_fix(case),
        )
    if read is not None and read > FEW_ROWS + FEW_ROWS_A_JOB * case.limit:
        yield Answer.warning(
            f"a claim of {_jobs(claimed)} reads {read:,} rows",
            _cost_fix(case),
        )


def _cost_fix(case: Case) -> str:
    """Return what makes the claim read and lock less."""
    claim = case.claim
    if (
        range_before_order(case.spec)
        or lacks_criterion(case.spec)
        or (claim.wanted.order is not None and not claim.serving)
    ):
        return "mend the index first, as its own finding says"
    if not claim.serving:
        return index_fix(claim)
    first = ""
    if not claim.chosen.walks(names_of(claim.fitting)):
        first = f"{analyze_fix(case)}. If it reads as much then, "
    return first + (
        "put the columns that the criteria compare for equality first in the claim index "
        '(__queue_args__["equality"]); give rows that other criteria tell apart tables, or '
        "statuses, of their own"
    )


def _cost_answer(case: Case, claimed: int, read: int | None, locked: int | None) -> Answer:
    reads = "an unknown number of rows" if read is None else f"{read:,} rows"
    locks = case.examination.lock_words or (
        "an unknown number" if locked is None else f"{locked:,}"
    )
    return Answer(
        f"one batch of {case.limit:,} got {_jobs(claimed)}; it reads {reads}, and locks {locks}"
    )


def _jobs(number: int) -> str:
    return f"{number:,} job" if number == 1 else f"{number:,} jobs"


# -- updates in place ---------------------------------------------------


def check_updates(case: Case) -> Iterator[Answer]:
    """Name the user's indexes that hold columns which a claim writes."""
    if not case.examination.updates_in_place or not case.mapping.is_queue:
        return
    written, ours = _written_columns(case), set(_names_of_our_indexes(case))
    for index in case.indexes:
        columns = [column for column in written if index.mentions(column)]
        if columns and index.name not in ours:
            yield Answer.warning(
                f"{index} holds {' and '.join(columns)}, which claims and finishes write: the "
                "index keeps PostgreSQL from HOT updates, and gets a new entry with each write",
                f"drop {index.name} if its queries can use the claim index; else take "
                f"{' and '.join(columns)} out of it, or make it partial on a status that few rows "
                "have",
            )
    yield Answer(
        "the status is in the claim index, which rules out HOT updates: each claim and each finish "
        f"adds an entry to each of the {len(case.indexes)} indexes that holds its row"
    )


def _written_columns(case: Case) -> list[str]:
    """Name the columns that a claim writes, including those with ``onupdate``."""
    mapping = case.mapping
    roles = ("status", "owner", "owner_date", "attempts")
    keys = [mapping.attributes[role] for role in roles if mapping.has(role)]
    columns = [mapping.mapper.columns[key] for key in (*keys, *mapping.onupdate_keys)]
    return [column.name for column in columns if column.table is mapping.table]


def _names_of_our_indexes(case: Case) -> Iterator[str]:
    """Name the indexes that claims and reap() walk, and those of serial keys."""
    for search in (case.claim, case.reap):
        if search is not None:
            yield search.name
            yield from names_of(search.fitting)
    of_model = [index_of(case.mapping.table, purpose) for purpose in ("claim", "reap")]
    for index in (*of_model, *(key_index(case.mapping, key) for key in case.mapping.per_key)):
        if index is not None:
            yield name_of(index, case.connection.dialect)
