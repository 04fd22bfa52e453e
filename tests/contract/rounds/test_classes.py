"""Rounds of every kind of class."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, insert, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import claim, complete, round_progress, start_round
from tests.contract.round_models import Cat, Member, Pet, Reader, add, state

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

Start = Callable[..., int]


def test_a_class_with_its_own_names_words_and_several_key_columns_has_rounds(
    session: Session, start_either: Start
) -> None:
    keys = [(club, number) for club in "abc" for number in range(3)]
    rows = [{"club": club, "number": number} for club, number in keys]
    session.execute(insert(Member), rows)
    session.commit()
    complete(session, claim(session, Member, owner="w", limit=4))
    session.commit()

    number = start_either(Member, chunk=2)

    assert {(row.job_status, row.mailing) for row in session.scalars(select(Member))} == {
        ("unsent", 1)
    }
    claimed = claim(session, Member, Member.mailing == number, owner="w", limit=9)
    assert [(row.club, row.number) for row in claimed] == keys
    session.rollback()


def test_a_start_for_a_class_of_a_hierarchy_takes_only_its_rows(
    session: Session, start_either: Start
) -> None:
    session.add_all([Pet(id=1), Cat(id=2), Cat(id=3)])
    session.commit()

    start_either(Cat, chunk=2)

    assert {id_: round_ for id_, (_, round_) in state(session, Pet).items()} == {1: 0, 2: 1, 3: 1}
    assert round_progress(session, Cat).total == 2


def test_round_mixin_alone_only_numbers_the_rows(session: Session, start_either: Start) -> None:
    add(session, Reader, 5)

    number = start_either(Reader, Reader.id > 1, chunk=2)

    found = session.scalars(select(Reader.round).order_by(Reader.id))
    assert list(found) == [0, *[number] * 4]
    assert round_progress(session, Reader).unclaimed == 4


def test_with_round_mixin_alone_a_row_that_is_done_joins_no_older_round(
    engine: Engine, session: Session
) -> None:
    add(session, Reader, 4)
    start_round(engine, Reader)
    session.execute(update(Reader).where(Reader.id == 1).values(round=-1))  # as complete() writes
    session.commit()

    assert round_progress(session, Reader, 1).done == 1
    session.commit()
    assert start_round(engine, Reader, Reader.id < 3) == 2
    assert list(session.scalars(select(Reader.round).order_by(Reader.id))) == [2, 2, 1, 1]
