"""The code of pages runs from top to bottom, and does what the pages say."""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, String, func, insert, inspect, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import sa_jobqueue
from sa_jobqueue import JobMixin, RetryMixin, ScheduleMixin, claim, complete, stats
from sa_jobqueue.bulk import FileLog, LoadState
from sa_jobqueue.migration import patiently
from tests.migration.support import migrating
from tests.models import Email
from tests.support import SERVERS

from .markdown import ROOT, code_blocks, page, run, table


def code_of(name: str) -> list[str]:
    return code_blocks(page(f"docs/{name}.md"), "python")


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("index", ["to anna@example.org"]),
        (
            "claiming",
            [
                *(f"to {name}@example.org" for name in ("anna", "bert", "carla", "dora")),
                *(f"to {name}@example.org" for name in ("emil", "fritz", "gerda")),
                "0 claims were reaped",
            ],
        ),
        # Bert's email is not due yet.
        ("coming-from", [*(f"to {name}@example.org" for name in ("anna", "carla", "dora")), "5"]),
    ],
)
def test_a_page_that_needs_nothing_prints_what_it_says(
    name: str, printed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run("\n".join(code_of(name)))

    assert capsys.readouterr().out.splitlines() == printed


def test_positions_shows_a_job_its_place_and_its_time(engine: Engine) -> None:
    names = run("\n".join(code_of("positions")))
    render, shown, hurry = names["Render"], names["shown"], names["hurry"]
    names["Base"].metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([render() for _ in range(33)])
        session.commit()
        claimed = claim(session, render, owner="w", limit=31)
        waiting = list(session.scalars(select(render).filter_by(status="unclaimed")))
        waiting.sort(key=lambda job: int(job.id))
        assert [shown(session, job) for job in waiting] == ["1 in line", "2 in line"]

        complete(session, claimed[:30])
        session.commit()

        assert stats(session, render).rate == 0.1
        assert shown(session, waiting[1]) == "2 in line, about 0:00:20"
        assert shown(session, claimed[30]) == "claimed"
        assert hurry(session, [claimed[30], waiting[1], waiting[0]]) == (
            "2 of 3 hurried; places now: [None, 2, 1]"
        )


def test_serial_has_the_index_of_its_key(taken_for_granted: dict[str, Any], engine: Engine) -> None:
    model, claims = code_of("serial")
    names = run(model, **taken_for_granted)
    names["Base"].metadata.create_all(engine)
    with Session(engine, expire_on_commit=False) as session:
        run(claims, **{**names, "session": session})

    indexes = {
        index["name"]: index["column_names"] for index in inspect(engine).get_indexes("email")
    }
    expected = ["status", "account_id", "attempts", "run_at", "id"]
    assert indexes["ix_email_key_account_id"] == expected


class TestRounds:
    MODEL, MAIL, AT_ONCE, CHUNKS, READERS, MAIL_READERS, UPGRADE = code_of("rounds")

    @pytest.fixture
    def sent(self, taken_for_granted: dict[str, Any]) -> Counter[Any]:
        sent: Counter[Any] = Counter()
        taken_for_granted["send"] = lambda somebody, mailing: sent.update([(somebody.id, mailing)])
        return sent

    def with_three_rows(self, model: str, entity: str, given: dict[str, Any]) -> dict[str, Any]:
        names = run(model, **given)
        names["Base"].metadata.create_all(names["engine"])
        with names["Session"].begin() as session:
            session.add_all([names[entity](id=number) for number in (1, 2, 3)])
        return names

    def test_everybody_is_mailed_once_in_each_round(
        self,
        taken_for_granted: dict[str, Any],
        sent: Counter[Any],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        names = self.with_three_rows(self.MODEL, "Subscriber", taken_for_granted)

        for code in (self.MAIL, self.AT_ONCE, self.CHUNKS, self.MAIL):
            names = run(code, **names)

        printed = capsys.readouterr().out.splitlines()
        assert printed == ["3 are done in round 1", "3 are done in round 4"]
        assert sent == Counter({(id_, round_): 1 for id_ in (1, 2, 3) for round_ in (1, 4)})

    @pytest.mark.only_on("postgresql")
    def test_the_round_mixin_alone_runs(
        self, taken_for_granted: dict[str, Any], sent: Counter[Any]
    ) -> None:
        names = self.with_three_rows(self.READERS, "Reader", taken_for_granted)

        run(self.MAIL_READERS, **names)

        assert sent == Counter({(id_, 1): 1 for id_ in (1, 2, 3)})

    def test_the_migration_runs(self, taken_for_granted: dict[str, Any], engine: Engine) -> None:
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE customer (id INTEGER PRIMARY KEY)"))
        with migrating(engine) as op:
            run(f"{self.UPGRADE}\nupgrade()", **{**taken_for_granted, "op": op})

        with engine.connect() as connection:
            assert list(connection.execute(text("SELECT * FROM customer_rounds"))) == []


def test_workflows_draws_its_diagram_as_the_example_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, begin, signal, note = code_of("workflows")
    log = """
class ClipLog(Base):
    __tablename__ = "clip_log"
    id: Mapped[int] = mapped_column(primary_key=True)
    clip_id: Mapped[int]
    before: Mapped[str]
    after: Mapped[str]
"""
    names = run("\n".join([model, log, note, begin, signal]))
    example = run((ROOT / "examples" / "08_render_pipeline.py").read_text(encoding="utf-8"))
    with names["Session"](names["engine"]) as session:
        clips = session.query(names["Clip"]).order_by(names["Clip"].id).all()
        logged = session.query(names["ClipLog"]).count()

    assert [clip.status for clip in clips] == ["published", "rejected"]
    assert logged == 9
    names["hear"](1)
    assert capsys.readouterr().out.endswith("clip 1 is published\n")
    (drawn,) = code_blocks(page("docs/workflows.md"), "mermaid")
    assert drawn == names["workflow"].diagram() + "\n" == example["workflow"].diagram() + "\n"


class RetriesBase(DeclarativeBase):
    pass


class Retried(JobMixin, ScheduleMixin, RetryMixin.named(last_error="why"), RetriesBase):  # type: ignore[misc]  # a call
    __tablename__ = "email_of_retries"
    __queue_args__ = {"max_attempts": 2}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    recipient: Mapped[str] = mapped_column(String(50))
    why = mapped_column(String(500))


def test_retries_counts_delays_and_brings_back(
    taken_for_granted: dict[str, Any], engine: Engine
) -> None:
    def send(email: Retried) -> None:
        raise OSError("no route")

    RetriesBase.metadata.create_all(engine)
    queue, service, many, dead = code_of("retries")
    with Session(engine, expire_on_commit=False) as session:
        session.add(Retried(recipient="bert@example.org"))
        session.commit()
        names = {**taken_for_granted, "session": session, "Email": Retried, "send": send}

        before = datetime.now(UTC)
        names = run(f"{queue}\n{service}", **names)
        (email,) = session.scalars(select(Retried))
        assert timedelta(seconds=4) < email.run_at - before < timedelta(seconds=15)

        sa_jobqueue.retry(session, sa_jobqueue.cancel(session, email))
        for _ in range(2):
            claimed = claim(session, Retried, owner="w")
            sa_jobqueue.fail(session, claimed, error="no", retry_in=timedelta(0))
        names = run(f"{many}\n{dead}", **names)

        emails = session.scalars(select(Retried).order_by(Retried.id)).all()
        assert [(email.status, email.attempts) for email in emails] == [("unclaimed", 0)] * 2
        assert [email.max_attempts for email in emails] == [2, 5]
        assert names["again"] == [email]


def test_bulk_loads_the_rows_of_a_list_and_of_a_table(
    taken_for_granted: dict[str, Any], engine: Engine, tmp_path: Path
) -> None:
    loading, _, in_tables, _ = code_of("bulk")
    names = {**taken_for_granted, "folder": tmp_path / "log", "Email": Email}
    Email.__table__.create(engine)  # type: ignore[attr-defined]  # it is a Table
    count = select(func.count()).select_from(Email)

    names = run(loading, **names)
    with Session(engine) as session:
        assert session.scalar(count) == 0
    run(in_tables, **names)

    with Session(engine) as session:
        assert session.scalar(count) == 1_000


def test_bulk_loads_resumes_and_rolls_back_a_source_of_ones_own(tmp_path: Path) -> None:
    stored: set[str] = set()
    limit, storing = [3], threading.Lock()

    def upload(name: str) -> None:
        with storing:
            if len(stored | {name}) > limit[0]:
                raise OSError("no space")
            stored.add(name)

    names: dict[str, Any] = {
        "names": ["a", "b", "c", "d", "e"],
        "folder": tmp_path / "log",
        "upload": upload,
        "remove": stored.discard,
    }
    *_, own = code_of("bulk")

    with pytest.raises(OSError, match="no space"):
        run(own, **names)
    names = vars(sys.modules["page"])
    load = names["BulkLoad"](names["Uploads"](names["names"]), FileLog(names["folder"]))
    assert load.state is LoadState.BLOCKED
    assert len(stored) == 3
    limit[0] = 5
    load.run()

    assert (load.state, stored) == (LoadState.CLEANING, {"a", "b", "c", "d", "e"})
    load.rollback()
    assert (load.state, stored) == (LoadState.CANCELLED, set())


def execute_line(engine: Engine, when: str) -> None:
    """Run the statements of a line of the page as it says."""
    (line,) = (
        line
        for line in table(page("docs/partitions.md"), "partitions")
        if line["partitions"] == when
    )
    cell = line["PostgreSQL" if engine.dialect.name == "postgresql" else "MySQL, MariaDB"]
    for code in re.findall("`([^`]+)`", cell):
        if " " in code:
            with migrating(engine) as op:
                patiently(op, lambda: op.execute(code))  # noqa: B023 - called at once


def add(engine: Engine, report: Any, *days: int) -> None:
    with engine.begin() as connection:
        connection.execute(insert(report), [{"day": date(2030, 1, day)} for day in days])


@pytest.mark.only_on(*SERVERS)
def test_partitions_makes_adds_and_drops_days(engine: Engine) -> None:
    models = run(code_of("partitions")[0])
    report = models["Report"]

    models["Base"].metadata.create_all(engine)
    execute_line(engine, "the first days")
    add(engine, report, 1, 2)
    execute_line(engine, "add a day")
    add(engine, report, 3)

    with Session(engine, expire_on_commit=False) as session:
        complete(session, claim(session, report, owner="w", limit=2))
        session.commit()
        execute_line(engine, "drop a day")
        assert [job.day.day for job in claim(session, report, owner="w", limit=9)] == [3]
        assert session.scalar(select(func.count()).select_from(report)) == 2
    if engine.dialect.name == "postgresql":
        assert {index["name"] for index in inspect(engine).get_indexes("report_d3")} == {
            "report_d3_status_id_day_idx",
            "report_d3_status_owner_date_idx",
        }
