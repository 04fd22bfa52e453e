"""The how-to pages: their files are written and their commands are typed, as a reader does it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .followed import reader
from .markdown import page

pytestmark = pytest.mark.timeout(240)


def test_the_mails_of_a_customer_are_sent_in_order(tmp_path: Path) -> None:
    with reader(tmp_path) as following:
        following.follow(page("docs/howto-ordered-per-customer.md"))

        worked = following.printed_by("sa-jobqueue work")

    assert re.findall("ann: (.*)", worked) == ["ordered", "paid", "shipped"]
    assert re.findall("bo: (.*)", worked) == ["ordered", "paid", "shipped"]


def test_a_booking_is_written_once(tmp_path: Path) -> None:
    with reader(tmp_path) as following:
        following.follow(page("docs/howto-exactly-once.md"))


def test_handlers_are_tested(tmp_path: Path) -> None:
    with reader(tmp_path) as following:
        following.follow(page("docs/howto-test-handlers.md"))


def test_a_job_runs_every_night(tmp_path: Path) -> None:
    with reader(tmp_path) as following:
        following.follow(page("docs/howto-schedule.md"))
