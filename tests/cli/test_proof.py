"""The proof of the demo believes only the database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rich.console import Console
from sqlalchemy import Engine, delete, update
from sqlalchemy.orm import Session

from sa_jobqueue.cli.demo.demo import conclude
from sa_jobqueue.cli.demo.model import Base, Finished, Inserted, Record
from sa_jobqueue.cli.demo.proof import prove


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """Three rows were inserted, and finished once."""
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        for key in (1, 2, 3):
            session.add(Record(id=key, d="x", e=0, status="done"))
            session.add(Inserted(record_id=key, producer=1))
            session.add(finish_of(key))
        session.flush()
        yield session


def finish_of(key: int) -> Finished:
    return Finished(record_id=key, consumer=1, batch=1)


def test_the_proof_holds_when_each_row_was_finished_once(session: Session) -> None:
    proof = prove(session)

    assert proof.holds
    assert (proof.inserted, proof.finished) == (3, 3)


def test_the_proof_holds_when_finished_rows_were_deleted(session: Session) -> None:
    session.execute(delete(Record))

    assert prove(session).holds


def test_the_proof_fails_when_a_row_was_finished_twice(session: Session) -> None:
    session.add(finish_of(2))

    proof = prove(session)

    assert not proof.holds
    assert proof.twice == 1


def test_the_proof_fails_when_a_row_was_never_finished(session: Session) -> None:
    session.execute(delete(Finished).where(Finished.record_id == 2))

    proof = prove(session)

    assert not proof.holds
    assert proof.unfinished == 1


def test_a_row_finished_twice_does_not_make_up_for_one_never_finished(session: Session) -> None:
    session.execute(update(Finished).where(Finished.record_id == 2).values(record_id=3))

    proof = prove(session)

    assert proof.inserted == proof.finished
    assert not proof.holds
    assert (proof.twice, proof.unfinished) == (1, 1)


def test_the_proof_fails_when_a_row_was_finished_that_nobody_inserted(session: Session) -> None:
    session.add(finish_of(99))

    proof = prove(session)

    assert not proof.holds
    assert proof.unknown == 1


@pytest.mark.parametrize("status", ["unclaimed", "claimed", "failed"])
def test_the_proof_fails_when_a_row_is_left(session: Session, status: str) -> None:
    session.execute(update(Record).where(Record.id == 1).values(status=status))

    proof = prove(session)

    assert not proof.holds
    assert proof.left == 1


def test_the_proof_fails_when_nothing_was_inserted(session: Session) -> None:
    for table in (Record, Inserted, Finished):
        session.execute(delete(table))

    assert not prove(session).holds


def test_a_failed_proof_is_exit_code_1(session: Session, engine: Engine) -> None:
    session.add(finish_of(2))
    session.commit()

    with pytest.raises(Exception, match=r"PROOF FAILED: .* 1 twice") as failed:
        conclude(engine, Console(quiet=True))

    assert getattr(failed.value, "exit_code", None) == 1
