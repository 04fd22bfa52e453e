"""The code of docs/retries.md, run from top to bottom on every database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import URL, Engine, String, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import sa_jobqueue
from sa_jobqueue import ConstantBackoff, ExponentialBackoff, JobMixin, RetryMixin, ScheduleMixin
from tests.support import make_engine

from .markdown import code_blocks, page, table

PAGE = page("docs/retries.md")


class Base(DeclarativeBase):
    pass


class Email(JobMixin, ScheduleMixin, RetryMixin.named(last_error="why"), Base):  # type: ignore[misc]  # a call
    __tablename__ = "email_of_retries"
    __queue_args__ = {"max_attempts": 2}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    recipient: Mapped[str] = mapped_column(String(50))
    why = mapped_column(String(500))


@pytest.fixture
def engine(db_url: URL) -> Iterator[Engine]:
    engine = make_engine(db_url)
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()


def test_the_code_of_the_page_runs(engine: Engine) -> None:
    def send(email: Email) -> None:
        raise OSError("no route")

    queue, service, many, dead = code_blocks(PAGE, "python")
    names: dict[str, Any] = {**vars(sa_jobqueue), "select": sqlalchemy.select}
    with Session(engine, expire_on_commit=False) as session:
        session.add(Email(recipient="bert@example.org"))
        session.commit()
        names |= {"session": session, "Email": Email, "send": send}

        before = datetime.now(UTC)
        exec(queue, names)
        exec(service, names)
        (email,) = session.scalars(select(Email))
        assert timedelta(seconds=4) < email.run_at - before < timedelta(seconds=15)

        sa_jobqueue.retry(session, sa_jobqueue.cancel(session, email))
        for _ in range(2):
            claimed = sa_jobqueue.claim(session, Email, owner="w")
            sa_jobqueue.fail(session, claimed, error="no", retry_in=timedelta(0))
        exec(many, names)
        exec(dead, names)

        emails = session.scalars(select(Email).order_by(Email.id)).all()
        assert [(email.status, email.attempts) for email in emails] == [("unclaimed", 0)] * 2
        assert [email.max_attempts for email in emails] == [2, 5]
        assert names["again"] == [email]


def test_an_error_is_cut_to_what_the_users_own_column_holds(engine: Engine) -> None:
    with Session(engine) as session:
        session.add_all([Email(recipient="anna@example.org"), Email(recipient="bert@example.org")])
        failed, cancelled_claimed = sa_jobqueue.claim(session, Email, owner="w", limit=2)

        sa_jobqueue.fail(session, failed, error="\N{PILE OF POO}" * 501)
        sa_jobqueue.cancel_claimed(session, cancelled_claimed, reason="ä" * 501)
        session.commit()

        kept = [str(text) for text in session.scalars(select(Email.why))]
    assert [460 < len(text) <= 500 for text in kept] == [True, True]


def test_the_policies_delay_as_the_table_says() -> None:
    lines = table(PAGE, "policy")
    constant, default = (eval(line["policy"].strip("`"), POLICIES) for line in lines[:2])
    minutes = re.findall(r"\d+", lines[0]["after the attempts 1, 2, 3, .."])
    seconds = re.findall(r"\d+", lines[1]["after the attempts 1, 2, 3, .."])

    for number in range(3):
        longest = timedelta(minutes=int(minutes[number]))
        assert longest * 0.9 <= constant(number + 1) <= longest
        whole = timedelta(seconds=int(seconds[number]))
        assert whole * 0.9 <= default(number + 1) <= whole
    assert default(99) <= timedelta(hours=1)


POLICIES = {
    "ConstantBackoff": ConstantBackoff,
    "ExponentialBackoff": ExponentialBackoff,
    "timedelta": timedelta,
}
