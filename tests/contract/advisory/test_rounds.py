"""Rounds by advisory locks: RoundMixin alone, and with JobMixin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import (
    JobQueue,
    claim,
    complete,
    release,
    round_progress,
    start_round,
)
from tests.contract.plans import rows_read_of_tables
from tests.contract.round_models import Reader, Subscriber, add, emptied
from tests.contract.subscriptions import ids, kept

pytestmark = pytest.mark.only_on("postgresql")

READERS: JobQueue[Reader] = JobQueue(Reader, strategy="advisory")


@pytest.fixture
def engine(engine: Engine) -> Iterator[Engine]:
    yield emptied(engine)
    assert kept(engine) == 0


def rounds(session: Session, entity: Any = Reader) -> dict[int, int]:
    """Read the round of each row, as it is in the database."""
    found = session.execute(select(entity.id, entity.round).order_by(entity.id))
    return {id_: round_ for id_, round_ in found}  # noqa: C416 - mypy knows no dict() of rows


def test_rows_are_claimed_by_round_and_key_and_those_in_no_round_are_not(mailing: Session) -> None:
    add(mailing, Reader, 6)
    start_round(mailing, Reader, Reader.id.in_([4, 2]))
    number = start_round(mailing, Reader, Reader.id.in_([1, 3]))
    mailing.commit()

    of_the_second = claim(mailing, Reader, Reader.round == number, strategy="advisory")

    assert ids(of_the_second) == [1]
    assert ids(READERS.claim(mailing, limit=9)) == [2, 4, 3]


@pytest.mark.parametrize("as_rows", [False, True])
def test_the_finish_takes_the_row_out_of_its_round_in_the_same_commit(
    mailing: Session, beside: Session, as_rows: bool
) -> None:
    add(mailing, Reader, 3)
    start_round(mailing, Reader)
    mailing.commit()
    claimed: Any = (READERS.claim_rows if as_rows else READERS.claim)(mailing, limit=2)

    complete(mailing, claimed)

    if not as_rows:
        assert [job.round for job in claimed] == [-1, -1]
    assert rounds(beside) == {1: 1, 2: 1, 3: 1}
    assert ids(READERS.claim(beside, limit=9)) == [3]  # the other two are still locked
    beside.commit()
    mailing.commit()
    assert rounds(beside) == {1: -1, 2: -1, 3: 1}
    assert round_progress(beside, Reader).done == 2
    beside.rollback()


@pytest.mark.parametrize("as_rows", [False, True])
@pytest.mark.parametrize("entity", [Reader, Subscriber])
def test_a_row_that_is_locked_when_a_round_starts_waits_for_that_round_after_its_finish(
    engine: Engine, mailing: Session, beside: Session, entity: Any, as_rows: bool
) -> None:
    add(mailing, entity, 5)
    start_round(mailing, entity)
    mailing.commit()
    queue = JobQueue(entity, strategy="advisory")
    claimed: Any = (queue.claim_rows if as_rows else queue.claim)(mailing, limit=3)
    mailing.commit()

    number = start_round(engine, entity, entity.id % 2 == 0)
    passed_over = ids(queue.claim(beside, limit=9))
    beside.commit()
    complete(mailing, claimed)
    left = -1 if entity is Reader else 1  # the others of the batch leave their round, or are done
    if not as_rows:
        assert [job.round for job in claimed] == [left, number, left]
    mailing.commit()

    assert passed_over == [5, 4]  # nothing is claimed anew under a living owner
    assert rounds(mailing, entity) == {1: left, 2: number, 3: left, 4: number, 5: 1}
    assert ids(queue.claim(beside, limit=9)) == [2]


@pytest.mark.parametrize("where", [(), (Reader.round == 2,)])
def test_a_claim_does_not_read_rows_that_its_round_has_done(mailing: Session, where: Any) -> None:
    """20,000 rows, of which all but the last are done."""
    numbers = "SELECT n, 1, CASE WHEN n > 19990 THEN 2 ELSE -2 END FROM generate_series(1, 20000) n"
    mailing.execute(text(f"INSERT INTO round_reader (id, kind, round) {numbers}"))
    queue = JobQueue(Reader, *where, strategy="advisory")

    for statistics in ("none", "those of half way", "fresh"):
        if statistics == "those of half way":
            mailing.execute(text("UPDATE round_reader SET round = 2 WHERE id > 10000"))
            mailing.execute(text("ANALYZE round_reader"))
            mailing.execute(text("UPDATE round_reader SET round = -2 WHERE id <= 19990"))
        elif statistics == "fresh":
            mailing.execute(text("ANALYZE round_reader"))
        before = rows_read_of_tables(mailing.connection())
        claimed = queue.claim(mailing, limit=3)

        assert ids(claimed) == [19991, 19992, 19993]
        assert rows_read_of_tables(mailing.connection()) - before < 100, statistics
        release(mailing, claimed)
    mailing.rollback()
