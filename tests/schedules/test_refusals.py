"""What makes no schedule, and what a schedule cannot do: each error says the way out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.schedules import Schedules

from .models import SCHEDULES, Plain, Renamed, Report, Typed, reports

pytestmark = pytest.mark.only_on("sqlite")

QUEUE = reports()

TEXT: Any = "2"


def declare_twice() -> None:
    queue = reports()
    queue.every("0 * * * *", name="r")
    queue.every("0 0 * * *", name="r")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda _: declare_twice(), "two schedules 'r'"),
        (lambda _: reports().every("61 * * * *", name="r"), "is no cron expression"),
        (lambda _: reports().every("0 0 * * *", name="r", revision=TEXT), "is a whole number"),
        (lambda session: SCHEDULES.pause(session, "x"), "no schedule 'x'"),
        (lambda session: SCHEDULES.run_now(session, "hourly", JobQueue(Plain)), "not of"),
        (lambda _: Schedules(Report.metadata), "schedules already"),
    ],
)
def test_what_cannot_be_done_with_a_schedule_says_the_way_out(
    session: Session, call: Callable[[Session], object], said: str
) -> None:
    SCHEDULES.add(session, "hourly", QUEUE, "0 * * * *")

    with pytest.raises(ArgumentError, match=said):
        call(session)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"values": {"title": datetime.now(UTC)}}, "JSON"),
        ({"values": {"tilte": "a"}}, "no column tilte"),
        ({"missed": "twice"}, "'skip', 'once' or 'all'"),
        ({"timezone": "Mars"}, "does not know the time zone"),
        ({"cron": "61 * * * *"}, "is no cron expression: Bad minute"),
        ({"cron": "0 0 30 2 *"}, "is no cron expression"),
        ({"timezone": None}, "the time zone of a schedule is text.*Europe/Berlin"),
        ({"name": ""}, "1 to 100 characters"),
        ({"cron": "0," * 150 + "0 0 * * *"}, "of 1 to 200 characters.*two schedules"),
        ({"values": [1]}, "values= maps attributes"),
        ({"queue": "email"}, "'email' is not a mapped class"),
        ({"queue": Renamed, "values": {"job_state": "done"}}, "'job_state', which the queue write"),
        *(
            ({"queue": Typed, "values": values}, said)
            for values, said in (
                ({"run_at": "2030-01-31T07:00:00"}, "has no time zone"),
                ({"run_at": "tomorrow"}, "Typed.run_at takes values of the type datetime.*ISO 8"),
                ({"day": "2030-02-31"}, "Typed.day takes values of the type date"),
                ({"price": "cheap"}, "Typed.price takes values of the type Decimal"),
                ({"key": "1"}, "Typed.key takes values of the type UUID"),
                ({"title": 5}, "Typed.title takes values of the type str"),
                ({"count": 1.5}, "Typed.count takes values of the type int"),
                ({"share": "half"}, "Typed.share takes values of the type float"),
                ({"takes": 5}, "Typed.takes takes values of the type timedelta.*by a default"),
                ({"more": float("nan")}, "JSON"),
                ({"status": "done"}, "'status', which the queue writes"),
                ({"owner": "me"}, "'owner', which the queue writes"),
                ({"owner_date": "2030-01-31T07:00:00+00:00"}, "'owner_date', which the queue wr"),
            )
        ),
    ],
)
def test_what_makes_no_schedule_is_refused(
    session: Session, given: dict[str, Any], said: str
) -> None:
    arguments: dict[str, Any] = {"name": "r", "queue": QUEUE, "cron": "0 * * * *", **given}
    with pytest.raises(ArgumentError, match=said):
        SCHEDULES.add(session, **arguments)


def test_a_column_of_ones_own_may_be_called_owner() -> None:
    JobQueue(Renamed).every("0 * * * *", name="fine", values={"owner": "Ann"})


def test_without_cronsim_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)

    with pytest.raises(ArgumentError, match=r"sa_jobqueue\[schedules\]"):
        reports().every("* * * * *", name="r")


def test_in_autocommit_schedules_are_refused(engine: Engine) -> None:
    bind = engine.execution_options(isolation_level="AUTOCOMMIT")

    with Session(bind) as session, pytest.raises(ArgumentError, match="one transaction"):
        SCHEDULES.run_due(session, [QUEUE])
