"""The pages of workers, of schedules and of the doctor; what all pages share."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, NullPool, func, select
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue import Owner

# Inner: no page makes each duration in a test's time.
from sa_jobqueue.ages import duration_text
from sa_jobqueue.control import pause, register_worker
from sa_jobqueue.web import site
from sa_jobqueue.web.rendering import plot
from tests.support import make_engine

from .conftest import LONG_AGO, Open, add, failed, keys_shown, preview_of, texts
from .models import SCHEDULES, TABLES, ApartBase, Email, Scan, emails, plain, scans, visits


@pytest.fixture
def schedule(session: Session) -> None:
    """A schedule of emails, and one of another queue."""
    values = {"recipient": "bo"}
    SCHEDULES.add(session, "morning", emails, "0 7 * * *", timezone="Europe/Berlin", values=values)
    SCHEDULES.add(session, "scanning", scans, "0 * * * *")
    session.commit()


def row(session: Session, name: str) -> Any:
    """Return a schedule as it is committed now."""
    session.rollback()
    (found,) = (info for info in SCHEDULES.all(session) if info.name == name)
    return found


# Workers


def test_workers_are_shown_with_their_state_and_their_queues(
    page: TestClient, session: Session, engine: Engine
) -> None:
    with Owner(engine, "mailer") as owner:
        name = owner.name
        register_worker(session, name, [emails, visits], jobs=3, tables=TABLES)
        register_worker(session, "plain-name", [scans], tables=TABLES)
        session.commit()

        answer = page.get("/workers")

    assert keys_shown(answer) == [name, "plain-name"]
    cells = texts(answer, "td")
    assert (cells[0], cells[3], cells[6]) == ("alive", "emails visits", "3")
    assert (cells[7], cells[10]) == ("unknown", "scans")
    assert "dead" in texts(page.get("/workers"), "td")


def test_workers_of_queues_that_the_page_does_not_have_are_not_shown(
    open_page: Open, session: Session
) -> None:
    register_worker(session, "w1", [emails, visits], tables=TABLES)
    register_worker(session, "w2", [visits], tables=TABLES)
    session.commit()

    answer = open_page(queues={"emails": emails}).get("/workers")

    assert keys_shown(answer) == ["w1"]
    assert "page_visit" not in answer.text
    assert "visits" not in answer.text


@pytest.mark.parametrize(
    ("path", "way_out"),
    [("/workers", "control_tables(Base.metadata)"), ("/schedules", "Schedules(Base.metadata)")],
)
def test_where_nothing_is_declared_the_page_says_how(
    open_page: Open, path: str, way_out: str
) -> None:
    assert way_out in open_page(queues={"plain": plain}).get(path).text


def test_where_a_table_is_missing_the_page_says_so(open_page: Open, fresh_database: URL) -> None:
    page = open_page(on=make_engine(fresh_database, poolclass=NullPool))

    overview, doctor = page.get("/"), page.get("/doctor")
    workers, schedules = page.get("/workers"), page.get("/schedules")

    assert "un your migration" in overview.text
    assert "un your migration" in doctor.text
    assert (workers.status_code, schedules.status_code) == (400, 400)
    assert "page_workers" in workers.text
    assert "page_schedules" in schedules.text


# Schedules


@pytest.mark.usefixtures("schedule")
def test_schedules_are_shown_with_their_next_ticks(page: TestClient, session: Session) -> None:
    found = session.get_one(SCHEDULES.entity, "morning")
    found.skipped_from, found.skipped_to = LONG_AGO, LONG_AGO + timedelta(days=2)
    found.last_error = "no such column"
    session.commit()

    answer = page.get("/schedules")

    assert keys_shown(answer) == ["morning", "scanning"]
    queue, times, next_tick, last_tick, state = texts(answer, "td")[:5]
    assert (queue, times, last_tick) == (
        "emails",
        "0 7 * * * Europe/Berlin, missed ticks: once",
        "\u2013",
    )
    assert f"{row(session, 'morning').next_tick:%Y-%m-%d %H:%M:%S} in" in next_tick
    assert state == ("runs missed 2020-01-01 00:00:00 until 2020-01-03 00:00:00 no such column")


@pytest.mark.usefixtures("schedule")
def test_a_schedule_is_run_now_after_a_preview(page: TestClient, session: Session) -> None:
    form = {"verb": "run", "name": "morning"}
    count = select(func.count()).select_from(Email)

    preview = preview_of(page, "/schedules", form)
    before = session.scalar(count)
    answer = page.post("/schedules", data={**form, "confirm": "yes"})
    session.rollback()

    assert "One job is inserted into emails at once." in preview.text
    assert (before, session.scalar(count)) == (0, 1)
    assert session.scalars(select(Email.recipient)).all() == ["bo"]
    assert answer.headers["location"] == "/schedules"


@pytest.mark.usefixtures("schedule")
def test_a_schedule_is_paused_and_resumed(page: TestClient, session: Session) -> None:
    page.post("/schedules", data={"verb": "pause", "name": "morning"})
    assert row(session, "morning").paused
    assert "paused" in texts(page.get("/schedules"), "td")[4]

    page.post("/schedules", data={"verb": "resume", "name": "morning"})
    assert not row(session, "morning").paused


@pytest.mark.usefixtures("schedule")
def test_a_schedule_of_another_queue_cannot_be_reached(open_page: Open, session: Session) -> None:
    page = open_page(queues={"emails": emails})

    answers = [
        page.post("/schedules", data={"verb": verb, "name": name, "confirm": "yes"})
        for verb, name in [("pause", "scanning"), ("pause", "none"), ("delete", "morning")]
    ]

    assert [answer.status_code for answer in answers] == [404, 404, 400]
    assert not row(session, "scanning").paused
    assert "scanning" not in page.get("/schedules").text


# Trouble first


def test_the_first_page_begins_with_what_is_wrong(
    page: TestClient, session: Session, engine: Engine
) -> None:
    calm = page.get("/")
    add(session, failed(1), Scan())
    pause(session, visits, tables=TABLES)
    with Owner(engine, "mailer") as owner:
        register_worker(session, owner.name, [visits], tables=TABLES)
    SCHEDULES.add(session, "morning", emails, "0 7 * * *")
    session.get_one(SCHEDULES.entity, "morning").next_tick = LONG_AGO
    session.commit()
    page.get("/doctor")

    answer = page.get("/")

    assert 'id="worries"' not in calm.text
    assert texts(answer, "li")[4:8] == [
        "visits: 1 dead worker, paused",
        "emails: 1 failed",
        "scans: no worker",
        "Schedules: morning overdue",
    ]
    assert keys_shown(answer)[0] == "visits paused"
    assert 'id="place"' in answer.text


# The doctor


def test_a_finding_is_shown_with_its_fix(open_page: Open, fresh_database: URL) -> None:
    engine = make_engine(fresh_database, poolclass=NullPool)
    ApartBase.metadata.create_all(engine)
    for index in ApartBase.metadata.tables["page_plain"].indexes:
        index.drop(engine)

    answer = open_page(on=engine, queues={"plain": plain}).get("/doctor")

    assert 'class="state error"' in answer.text
    assert "Fix: " in answer.text


def line_of(page: TestClient) -> list[str]:
    """Return the points of the plot of due emails, the oldest first."""
    found = re.search(r'<polyline points="([^"]*)"', page.get("/queues/emails").text)
    return found[1].split() if found else []


def test_each_look_is_a_sample_unless_the_last_one_is_too_young(
    page: TestClient, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(session, Email(id=1))
    young = [len(line_of(page)) for _ in range(3)]
    monkeypatch.setattr(site, "EVERY", timedelta(0))

    page.get("/")
    old_enough = [len(line_of(page)) for _ in range(2)]

    assert young == [0, 0, 0]
    assert old_enough == [3, 4]


def test_a_sample_is_shown_for_half_an_hour(
    page: TestClient, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(session, Email(id=1))
    monkeypatch.setattr(site, "EVERY", timedelta(0))
    before = [len(line_of(page)) for _ in range(2)]
    monkeypatch.setattr(site, "SHOWN", timedelta(0))

    assert before == [0, 2]
    assert line_of(page) == []


def test_a_plot_has_its_times_and_a_gap_where_nothing_was_seen() -> None:
    points = [(1_000.0, 2.0), (990.0, 4.0), (500.0, 1.0), (490.0, None), (480.0, 1.0), (470.0, 1.0)]

    drawn = plot(points, 100, 10, span=1_000)

    assert drawn is not None
    assert drawn.lines == ["0.0,5.0 1.0,1.0", "52.0,7.0 53.0,7.0"]
    assert drawn.areas == ["0.0,10 0.0,5.0 1.0,1.0 1.0,10", "52.0,10 52.0,7.0 53.0,7.0 53.0,10"]
    assert plot([(1.0, None), (0.0, 3.0)], 100, 10, span=1_000) is None


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (0.0, "0 s"),
        (0.1234, "0.123 s"),
        (5.3e-05, "0 s"),
        (180, "3 min"),
        (timedelta(seconds=185), "3 min 5 s"),
        (3_599.7, "60 min"),
        (timedelta(hours=2, minutes=5), "2 h 5 min"),
        (timedelta(days=3), "3 d"),
    ],
)
def test_a_duration_in_a_sentence_is_as_people_say_it(duration: Any, text: str) -> None:
    assert duration_text(duration) == text
