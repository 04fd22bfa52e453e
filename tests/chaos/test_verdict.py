"""The table of calls finds what was handled too often, or never."""

from __future__ import annotations

from tests.chaos.jobs import Handled
from tests.chaos.verdict import Calls


def call(attempt: int, player: str, *, raised: bool = False) -> Handled:
    return Handled(job=7, attempt=attempt, player=player, raised=raised)


def faults(*calls: Handled, status: str = "done", **excuses: set[str]) -> list[str]:
    harmed, lock = excuses.get("harmed", set()), excuses.get("lock", set())
    return list(Calls({7: status}, list(calls), harmed, lock, lost=set()).faults())


def test_a_job_that_was_handled_once_is_no_fault() -> None:
    assert faults(call(1, "a")) == []


def test_a_job_that_was_never_handled_or_is_not_done_is_a_fault() -> None:
    assert faults(status="claimed") == ["job 7 is claimed", "job 7 was never handled"]


def test_a_call_that_raised_does_not_count_as_handled() -> None:
    assert faults(call(1, "a", raised=True)) == ["job 7 was never handled"]
    assert faults(call(1, "a", raised=True), call(2, "b")) == []


def test_a_second_call_needs_an_excuse_of_the_first_ones_worker() -> None:
    twice = call(1, "a"), call(2, "b")

    assert faults(*twice) == ["job 7 was handled by a in attempt 1, and again by b in attempt 2"]
    assert faults(*twice, harmed={"b"}) != []
    assert faults(*twice, harmed={"a"}) == []
    assert faults(*twice, lock={"a"}) == []


def test_two_calls_of_an_attempt_are_a_fault_whatever_was_done_to_the_worker() -> None:
    assert faults(call(1, "a"), call(1, "a"), harmed={"a"}) == [
        "attempt 1 of job 7 was handled twice"
    ]


def test_a_report_that_ran_twice_or_before_its_parts_is_a_fault() -> None:
    calls = Calls({}, [], set(), set(), set(), reports=[("a", "done", 1, 0), ("b", "done", 2, 3)])

    assert list(calls.faults()) == ["report b is done, and ran 2 times with 3 unfinished parts"]
