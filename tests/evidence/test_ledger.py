"""A ledger's lines: within the transaction and after it, by several processes, and as rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, Table, event, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue, claim, complete, enqueue, fail, fence_of, renew
from sa_jobqueue.evidence import HistoryTable, Ledger, check_files, history_table
from tests.evidence.bench import ALL, Bench, committed, tried
from tests.models import Email, Task
from tests.processes import FORKSERVER
from tests.support import make_engine


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_claim_has_a_line_before_its_commit_and_one_after_it(bench: Bench) -> None:
    bench.add(Task(name="a"))
    session = bench.session()

    with bench.recording(Task):
        claimed = claim(session, Task, owner="w")
        (before,) = lines(bench.path)
        session.commit()
        _, after = lines(bench.path)

    (job,), fence = before["jobs"], fence_of(claimed[0])
    assert (before["event"], before["verb"], before["table"]) == ("after_claim", "claim", "task")
    assert (job["key"], job["owner"], job["attempts"]) == ([*fence.identity], "w", 1)
    assert fence.owner_date is not None
    assert job["dates"] == [f"{fence.owner_date:%Y-%m-%dT%H:%M:%S.%fZ}"]
    assert (after["of"], after["end"]) == (before["n"], "committed")


def test_a_commit_without_an_answer_is_noted_as_unknown(bench: Bench) -> None:
    bench.add(Email(recipient="a"))
    session = bench.session()

    def lose_the_answer(connection: object) -> None:
        raise OperationalError("COMMIT", None, Exception("connection lost"))

    with bench.recording(Email):
        claim(session, Email, owner="w")
        event.listen(bench.engine, "commit", lose_the_answer)
        with pytest.raises(OperationalError):
            session.commit()
        event.remove(bench.engine, "commit", lose_the_answer)
        session.rollback()

    assert lines(bench.path)[-1]["end"] == "unknown"


def claim_some(url: str, path: str, owner: str) -> None:
    """Claim and finish jobs in a process of its own."""
    engine = make_engine(url)
    with Ledger(path).listen(Email), Session(engine, expire_on_commit=False) as session:
        while claimed := committed(session, JobQueue(Email).claim, owner=owner, limit=2):
            tried(session, complete, claimed)


@pytest.mark.load
def test_processes_write_to_one_file(bench: Bench) -> None:
    with bench.recording(Email):
        bench.add(*(Email(recipient=str(number)) for number in range(20)))
    url = bench.engine.url.render_as_string(hide_password=False)

    processes = [
        FORKSERVER.Process(target=claim_some, args=(url, str(bench.path), owner)) for owner in "ab"
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0, 0]
    assert bench.faults(drained=True) == []
    assert sum(len(line["jobs"]) for line in lines(bench.path) if "jobs" in line) == 60


@pytest.mark.only_on("sqlite")
def test_a_line_that_cannot_be_written_is_logged_and_the_verb_goes_on(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this machine has no /dev/full")
    bench.add(Email(recipient="a"))

    with Ledger("/dev/full").listen(Email), caplog.at_level(logging.ERROR):
        claimed = committed(bench.session(), JobQueue(Email).claim, owner="w")

    assert len(claimed) == 1
    assert "No space left on device" in caplog.text


@pytest.mark.only_on("sqlite")
def test_a_closed_ledger_listens_no_more(bench: Bench) -> None:
    ledger = Ledger(bench.path).listen(Email)
    ledger.close()
    ledger.close()

    bench.add(Email(recipient="a"))

    assert lines(bench.path) == []
    with pytest.raises(ArgumentError, match="closed"):
        ledger.listen(Email)


@pytest.fixture
def history(bench: Bench) -> Iterator[Table]:
    table = history_table(MetaData(), "email_history")
    table.create(bench.engine)
    yield table
    for session in bench.opened:
        session.close()
    table.drop(bench.engine)


def test_a_table_holds_what_was_committed_with_the_verbs(bench: Bench, history: Table) -> None:
    bench.add(Task(name="a"))
    session, recorder = bench.session(), HistoryTable(history).listen(Task)

    claim(session, Task, owner="w")
    session.rollback()
    claimed = committed(session, JobQueue(Task).claim, owner="w")
    tried(session, renew, claimed)
    tried(session, fail, claimed, error="no such host")
    enqueue(session, Task, [{"name": "b"}])
    session.commit()
    recorder.remove(Task)

    rows = session.execute(select(history).order_by(history.c.id)).all()
    (fence,) = claimed.fences
    assert [(row.event, row.owner, row.attempts) for row in rows] == [
        ("after_claim", "w", 1),
        ("after_renew", "w", None),
        ("after_fail", "w", None),
    ]
    assert {(row.queue_table, row.job_key) for row in rows} == {("task", f"[{fence.identity[0]}]")}
    assert rows[1].owner_date.replace(tzinfo=None) == fence.owner_date.replace(tzinfo=None)  # type: ignore[union-attr]  # it has one
    assert rows[2].error == "no such host"
    assert all(row.noted_at for row in rows)


def test_who_had_a_row_is_a_select(bench: Bench, history: Table) -> None:
    bench.add(Email(recipient="a"))
    session, recorder = bench.session(), HistoryTable(history).listen(Email)
    for owner in ("mailer-1", "mailer-2"):
        committed(session, JobQueue(Email).claim, owner=owner)
        bench.take_all_back(Email)
    recorder.remove(Email)

    at = session.scalars(select(history.c.noted_at).where(history.c.event == "after_claim")).all()
    had = (
        select(history.c.event, history.c.owner)
        .where(history.c.queue_table == "email", history.c.noted_at <= at[1])
        .order_by(history.c.id.desc())
        .limit(1)
    )

    assert session.execute(had).one() == ("after_claim", "mailer-2")


def test_the_history_under_autocommit_is_sound(bench: Bench) -> None:
    bench.add(Email(recipient="a"))
    autocommit = bench.engine.execution_options(isolation_level="AUTOCOMMIT")

    with bench.recording(Email), Session(autocommit, expire_on_commit=False) as session:
        complete(session, JobQueue(Email).claim(session, owner="w"))

    assert [line.get("end") for line in lines(bench.path)] == [None, "committed"] * 2
    assert check_files(bench.path, skew=ALL) == []
