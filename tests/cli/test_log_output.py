"""--log-level and --log-json."""

from __future__ import annotations

import json
import logging
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue.cli.log_output import JsonLines

from .conftest import Run, Start, finished
from .shop import Base, Message

MESSAGES = "tests.cli.shop:Message"

#: A user's module that sets up logging, as it is imported.
OWN_LOGGING = """
import logging

from tests.cli.shop import send

logging.basicConfig(format="OURS %(message)s", level="INFO")
"""


@pytest.fixture(autouse=True)
def message(engine: Engine) -> None:
    """A message with one attempt."""
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Message(recipient="anna", max_attempts=1))


def test_each_record_is_a_json_object_with_its_extra_fields(run: Run, url: str) -> None:
    handler = ("--handler", "tests.cli.shop:refuse")

    result = run("work", MESSAGES, *handler, "--url", url, "--drain", "--log-json")

    (failed,) = (
        record
        for line in result.stderr.splitlines()
        if (record := json.loads(line))["level"] == "WARNING"
    )
    assert failed.pop("duration") >= 0
    assert failed.pop("message").startswith("Message 1 failed, attempt 1 of 1, after ")
    assert failed.pop("exception").endswith("\nValueError: no")
    assert datetime.fromisoformat(failed.pop("time")).tzinfo is not None
    assert failed.pop("process") > 0
    assert "JobQueue Message" in failed.pop("queue")
    assert failed == {
        "level": "WARNING",
        "logger": "sa_jobqueue.worker",
        "job_class": "Message",
        "job_key": [1],
        "status": "failed",
        "attempt": 1,
        "max_attempts": 1,
        "next_try_in": None,
    }


def test_the_level_leaves_out_what_is_below_it(run: Run, url: str) -> None:
    handler = ("--handler", "tests.cli.shop:send")

    result = run("work", MESSAGES, *handler, "--url", url, "--drain", "--log-level", "warning")

    assert (result.exit_code, result.output) == (0, "")


def test_logging_is_as_before_when_the_command_has_ended(run: Run, url: str) -> None:
    root = logging.root
    before = root.level, root.handlers

    run("work", MESSAGES, "--handler", "tests.cli.shop:send", "--url", url, "--drain", "--log-json")

    assert (root.level, root.handlers) == before


def test_records_go_to_the_error_output_where_nobody_says(start: Start, url: str) -> None:
    working = start("work", MESSAGES, "--handler", "tests.cli.shop:send", "--url", url, "--drain")

    code, output, errors = finished(working)

    assert (code, output) == (0, "")
    assert f" INFO {working.pid} sa_jobqueue.worker: Message 1 sent, attempt 1 of 1" in errors


def test_the_applications_own_logging_is_left_as_it_is(
    start: Start, url: str, folder: Path
) -> None:
    (folder / "shop_that_logs.py").write_text(OWN_LOGGING)
    work = ("work", MESSAGES, "--handler", "shop_that_logs:send", "--url", url, "--drain")

    code, _, errors = finished(start(*work))
    _, _, on_demand = finished(start(*work, "--log-level", "info"))

    assert code == 0
    assert all(line.startswith("OURS ") for line in errors.splitlines())
    assert "OURS" not in on_demand
    assert "no job is due, and no retry waits" in errors
    assert "no job is due, and no retry waits" in on_demand


class Unspeakable:
    """It has no text."""

    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("extra", "written"),
    [
        ({"stock": {(1, 2): 3}}, {"stock": "{(1, 2): 3}"}),
        ({"amount": float("nan"), "shelf": 7}, {"amount": "nan", "shelf": 7}),
        ({"time": "noon", "level": 3}, {"time_": "noon", "level_": 3}),
        ({"what": Unspeakable()}, {"what": "<Unspeakable without a text: ValueError>"}),
    ],
)
def test_an_extra_field_never_costs_the_record(
    extra: dict[str, Any], written: dict[str, Any]
) -> None:
    record = logging.makeLogRecord({"msg": "counted", "levelname": "INFO", **extra})

    line = json.loads(JsonLines().format(record), parse_constant=pytest.fail)

    assert {name: line[name] for name in written} == written
    assert (line["message"], line["level"]) == ("counted", "INFO")


def test_the_stack_of_a_record_is_written() -> None:
    record = logging.makeLogRecord({"msg": "where", "stack_info": "Stack (most recent call last)"})

    assert json.loads(JsonLines().format(record))["stack"] == "Stack (most recent call last)"
