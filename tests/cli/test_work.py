"""``work`` in this process, and what it logs; ``reap``."""

from __future__ import annotations

import logging
import re
import sys
from datetime import datetime

import pytest
from click.testing import Result
from sqlalchemy import URL, Engine, update
from sqlalchemy.orm import Session

from sa_jobqueue import Owner, claim, utc_now

from .bakery import Loaf
from .conftest import Run, Shell, add, read
from .films import Film, cut
from .records import ends, messages, records
from .shop import Message, Order

SHOP, FILMS, BAKERY = "tests.cli.shop", "tests.cli.films", "tests.cli.bakery"
MESSAGES, ASYNC_BAKERY = f"{SHOP}:Message", "tests.cli.async_bakery"


#: Options of a drain that logs a line for each job.
LINES = ("--drain", "--log-json", "--log-level", "debug")


@pytest.fixture
def jobs(engine: Engine, tables: None) -> None:
    """Two messages, an order, a loaf of each kind, and two films, of which one is hard."""
    add(engine, Message(recipient="anna"), Message(recipient="bob"), Order(shop="north", number=7))
    add(engine, *(Loaf(kind=kind) for kind in ("bread", "cake", "idea")))
    add(engine, Film(title="easy"), Film(title="hard"))


@pytest.fixture
def drain(run: Run, url: str) -> Run:
    def drain(*arguments: object, level: str = "debug") -> Result:
        options = ("--url", url, "--drain", "--log-json", "--log-level", level)
        return run("work", *arguments, *options)

    return drain


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    ("arguments", "handled"),
    [
        ((MESSAGES, "--handler", f"{SHOP}:send"), [(1, "sent"), (2, "sent")]),
        ((MESSAGES, "--handler", f"{SHOP}:send", "--limit", 10), [(1, "sent"), (2, "sent")]),
        ((f"{SHOP}:to_a", "--handler", f"{SHOP}:drop"), [(1, "cancelled")]),
        ((f"{SHOP}:Order", "--handler", f"{SHOP}:refuse"), [("north", 7, "failed")]),
        (
            (f"{FILMS}:workflow",),
            [(1, "cut"), (1, "done"), (2, "unclaimed"), (2, "cut"), (2, "done")],
        ),
        ((f"{FILMS}:show",), []),
        ((f"{FILMS}:cut",), [(1, "cut"), (2, "unclaimed"), (2, "cut")]),
        ((f"{BAKERY}:cakes", f"{BAKERY}:bread"), [(2, "done"), (1, "done")]),
    ],
)
def test_a_drain_logs_what_became_of_each_job(
    drain: Run, arguments: tuple[object, ...], handled: list[tuple[object, ...]]
) -> None:
    result = drain(*arguments)

    assert ends(result) == handled
    assert messages(result)[-1] == "no job is due, and no retry waits"


@pytest.mark.usefixtures("jobs")
def test_a_module_stands_for_all_that_has_a_handler_and_each_queue_counts_once(
    drain: Run, engine: Engine
) -> None:
    left_alone, begins, *_ = messages(
        drain(BAKERY, f"{BAKERY}:same_bread", "tests.cli.films", level="info")
    )

    assert left_alone == f"queues without a handler are left alone: {BAKERY}:ideas"
    assert begins == (
        f"a worker begins: {BAKERY}:films.cut, {BAKERY}:films.show, {BAKERY}:bread, {BAKERY}:cakes"
    )
    assert read(engine, Loaf.status) == ["done", "done", "unclaimed"]
    assert read(engine, Film.status) == []  # as the model says


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    ("handler", "driver"), [("send_slowly", "sqlite"), ("send_awaited", "sqlite+aiosqlite")]
)
def test_a_line_a_minute_has_the_numbers_and_there_is_none_for_each_job(
    run: Run, url: str, handler: str, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.cli.logs.MINUTE", 0.3)
    own = ("--handler", f"{SHOP}:{handler}", "--limit", 1, "--drain", "--log-level", "info")

    result = run("work", MESSAGES, *own, "--url", url.replace("sqlite", driver, 1))

    told = [line for line in result.stderr.splitlines() if " done, 0 failed, " in line]
    assert re.search(r": in [\d.]+ s: 0 done, 0 failed, 0 a second, 1 waiting$", told[0])
    assert sum(int(re.findall(r"(\d) done", line)[0]) for line in told) == 2
    assert "Message 1" not in result.stderr


@pytest.mark.usefixtures("jobs")
def test_the_numbers_count_attempts_that_failed_but_not_what_is_put_off(drain: Run) -> None:
    failed = drain(f"{SHOP}:Order", "--handler", f"{SHOP}:refuse", level="info")
    cancelled = drain(f"{SHOP}:to_a", "--handler", f"{SHOP}:drop", level="info")

    assert "0 done, 1 failed, " in messages(failed)[-2]
    assert "0 done, 0 failed, " in messages(cancelled)[-2]


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    ("handler", "driver"), [("leave", "sqlite"), ("leave_awaited", "sqlite+aiosqlite")]
)
def test_a_handler_that_exits_is_no_success_of_the_command(
    run: Run, url: str, handler: str, driver: str
) -> None:
    result = run(
        *("work", MESSAGES, "--handler", f"{SHOP}:{handler}", "--drain"),
        *("--log-level", "info", "--url", url.replace("sqlite", driver, 1)),
    )

    assert result.exit_code == 1
    assert "SystemExit(0) has ended this worker" in result.stderr
    assert "no job is due, and no retry waits" not in result.stderr


@pytest.fixture
def loaves(bakery: Engine) -> Engine:
    """A bread and a cake in the database of the test."""
    add(bakery, Loaf(kind="bread"), Loaf(kind="cake"))
    return bakery


def test_an_async_url_serves_async_handlers(run: Run, loaves: Engine, async_url: str) -> None:
    result = run("work", ASYNC_BAKERY, "--url", async_url, *LINES)

    assert sorted(status for _, status in ends(result)) == ["done", "done"]
    found = sorted(read(loaves, Loaf.status))
    assert found == ["done", "done", "unclaimed"]  # a transactional idea


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("target", [f"{ASYNC_BAKERY}:bread", f"{BAKERY}:cakes"])
def test_a_driver_for_both_serves_the_handlers_that_there_are(
    run: Run, loaves: Engine, db_url: URL, target: str
) -> None:
    pytest.importorskip("psycopg")
    url = db_url.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)

    result = run("work", target, "--url", url, *LINES)

    assert [status for _, status in ends(result)] == ["done"]


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
def test_a_missing_database_ends_the_command_at_once(run: Run, db_url: URL) -> None:
    url = db_url.set(database="no_such_database").render_as_string(hide_password=False)

    result = run("work", f"{BAKERY}:bread", "--url", url, "--log-level", "warning")

    assert (result.exit_code, len(result.output.splitlines())) == (1, 1)
    assert "no_such_database" in result.output


@pytest.mark.usefixtures("jobs")
def test_each_record_is_a_json_object_with_its_extra_fields(drain: Run, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.get_one(Message, 1).max_attempts = 1

    handler = "tests.cli.shop:tell_and_refuse"
    result = drain("tests.cli.shop:to_a", "--handler", handler, level="info")

    told, failed = (each for each in records(result.stderr) if each["level"] != "INFO")
    assert told.pop("stack").startswith("Stack (most recent call last)")
    assert told["message"] == "counted"
    assert (told["stock"], told["shelf"]) == ({}, "<class 'object'>")  # no key is a tuple
    assert (told["time_"], told["level_"]) == ("noon", 3)
    assert failed.pop("duration") >= 0
    assert failed.pop("message").startswith("Message 1 failed, attempt 1 of 1, after ")
    assert failed.pop("exception").endswith("\nValueError: no")
    assert datetime.fromisoformat(failed.pop("time")).tzinfo is not None
    assert failed.pop("process") > 0
    assert "JobQueue Message" in failed.pop("queue")
    assert failed == {
        "level": "ERROR",
        "logger": "sa_jobqueue.worker",
        "job_class": "Message",
        "job_key": [1],
        "status": "failed",
        "attempt": 1,
        "max_attempts": 1,
        "next_try_in": None,
    }


@pytest.mark.usefixtures("jobs")
def test_the_applications_own_logging_is_left_as_it_is_unless_an_option_says_else(
    shell: Shell,
) -> None:
    work = ("work", MESSAGES, "--handler", f"{SHOP}:send", "--drain")
    logging.root.handlers = [own := logging.StreamHandler(sys.stderr)]

    shell(*work)
    kept = list(logging.root.handlers)
    on_demand = shell(*work, "--log-level", "info")
    quiet = shell(*work, "--log-level", "warning")

    assert kept == [own]
    assert "no job is due, and no retry waits" in on_demand.stderr
    assert (quiet.exit_code, quiet.output) == (0, "")


@pytest.fixture
def three(engine: Engine, tables: None) -> None:
    """Three unclaimed messages, the last of which has a single attempt."""
    add(engine, Message(recipient="a"), Message(recipient="b"))
    add(engine, Message(recipient="c", max_attempts=1))


def claim_as(engine: Engine, owner: str | Owner, limit: int = 3) -> None:
    with Session(engine) as session, session.begin():
        claim(session, Message, owner=owner, limit=limit)


@pytest.mark.usefixtures("three")
def test_reap_prints_the_owners_the_reasons_and_the_new_statuses(shell: Shell) -> None:
    with Owner(shell.engine, "victim") as owner:
        claim_as(shell.engine, owner)
        name = owner.name

    result = shell("reap", MESSAGES)

    assert result.exit_code == 0, result.output
    assert result.stdout == (
        f"2 of {name}: dead owner, can be claimed again\n1 of {name}: dead owner, failed\n"
    )
    assert shell.read(Message.status) == ["unclaimed", "unclaimed", "failed"]


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "nothing to reap\n"),
        (("--lease", 200), "nothing to reap\n"),
        (("--lease", 50), "1 of \ufffd]0;mailer: lease over, can be claimed again\n"),
        (
            ("--max-runtime", 0),
            "1 of \ufffd]0;mailer: max_runtime over, can be claimed again\n1 of nobody: max_",
        ),
    ],
)
def test_claims_of_others_are_left_alone_unless_an_option_says_so(
    shell: Shell, options: tuple[object, ...], said: str
) -> None:
    with shell.session() as session:
        claim(session, Message, owner="\x1b]0;mailer", limit=1)  # no command to the terminal
        past = utc_now(-100_000_000)
        session.execute(update(Message).where(Message.owner.is_not(None)).values(owner_date=past))
        by_hand = update(Message).where(Message.recipient == "b")
        session.execute(by_hand.values(status="claimed"))  # nobody has it
    with Owner(shell.engine) as owner:
        claim_as(shell.engine, owner, 1)

        result = shell("reap", MESSAGES, *options)

    assert (result.exit_code, result.stdout[: len(said)]) == (0, said)


def test_all_steps_of_a_workflow_are_reaped(shell: Shell) -> None:
    shell.add(Film(title="easy"))
    with shell.session() as session:
        cut.queue.claim(session, owner="gone")

    reaped = shell("reap", "tests.cli.films:workflow", "--max-runtime", 0)

    assert reaped.stdout == "1 of gone: max_runtime over, can be claimed again\n"
