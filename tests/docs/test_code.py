"""The code of pages runs from top to bottom, and does what the pages say."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import URL, Engine, String, inspect, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import sa_jobqueue
from sa_jobqueue import JobMixin, RetryMixin, ScheduleMixin, claim, complete, migration, stats
from sa_jobqueue.worker import Worker
from tests.migration.support import migrating
from tests.support import make_engine

from .markdown import ROOT, code_blocks, page, table


def run(code: str, **given: Any) -> dict[str, Any]:
    """Run code of a page with the names that it takes for granted; return all its names."""
    module = ModuleType("page")
    names = vars(module)
    names.update(given)
    sys.modules["page"] = module  # annotations are looked up there
    # Without the annotations of this module's future.
    exec(compile(code, "page", "exec", dont_inherit=True), names)
    return names


def code_of(name: str) -> list[str]:
    return code_blocks(page(f"docs/{name}.md"), "python")


@pytest.fixture
def engine(fresh_database: URL) -> Iterator[Engine]:
    engine = make_engine(fresh_database)
    yield engine
    engine.dispose()


@pytest.fixture
def taken_for_granted(engine: Engine) -> dict[str, Any]:
    """Give what pages leave out: imports, a base, a session."""

    class Base(DeclarativeBase):
        pass

    return {
        **vars(sqlalchemy),
        **vars(sa_jobqueue),
        **vars(migration),
        "Base": Base,
        "Mapped": Mapped,
        "mapped_column": mapped_column,
        "engine": engine,
        "Session": sessionmaker(engine, expire_on_commit=False),
    }


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


def test_coming_from_a_task_that_an_old_worker_does_not_know_keeps_its_attempts() -> None:
    names = run("\n".join(code_of("coming-from")))
    task, engine = names["Task"], names["engine"]
    with Session(engine) as session:
        session.add(task(name="multiply", arguments={"x": 2, "y": 3}))
        session.commit()

        Worker(engine, names["tasks"], drain=True).run()

        new = select(task.status, task.attempts).where(task.name == "multiply")
        assert session.execute(new).one() == ("unclaimed", 0)


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


def test_an_error_is_cut_to_what_the_users_own_column_holds(engine: Engine) -> None:
    RetriesBase.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Retried(recipient="anna"), Retried(recipient="bert")])
        failed, cancelled = claim(session, Retried, owner="w", limit=2)

        sa_jobqueue.fail(session, failed, error="\N{PILE OF POO}" * 501)
        sa_jobqueue.cancel_claimed(session, cancelled, reason="ä" * 501)
        session.commit()

        kept = [str(kept) for kept in session.scalars(select(Retried.why))]
    assert [460 < len(error) <= 500 for error in kept] == [True, True]


def test_the_policies_delay_as_the_table_of_retries_says() -> None:
    known = {**vars(sa_jobqueue), "timedelta": timedelta}
    lines = table(page("docs/retries.md"), "policy")
    units = (timedelta(minutes=1), timedelta(seconds=1))
    for line, unit in zip(lines, units, strict=False):
        policy = eval(line["policy"].strip("`"), known)
        numbers = re.findall(r"\d+", line["after the attempts 1, 2, 3, .."])
        for attempt, number in enumerate(numbers[:3], start=1):
            assert 0.9 <= policy(attempt) / (int(number) * unit) <= 1, (line, attempt)
        assert policy(99) <= timedelta(hours=1)
