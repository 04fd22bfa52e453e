"""Histories written by hand: what the checker finds, and what it must not find."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from sa_jobqueue import ArgumentError
from sa_jobqueue.evidence import Fault, History, check, check_files
from sa_jobqueue.evidence.queue_rules import DEAD
from tests.evidence.written import Written


def rules(written: Written, **how: Any) -> list[str]:
    return [fault.rule for fault in faults(written, **how)]


def faults(written: Written, **how: Any) -> list[Fault]:
    return check_files(*written.files(), **how)


@pytest.fixture
def run(tmp_path: Path) -> Written:
    return Written(tmp_path)


def test_a_claim_that_ends_before_the_next_is_sound(run: Written) -> None:
    run.claim("a", 1)
    run.note("fail", "a", 1)
    run.claim("b", 2, attempts=2)
    run.note("complete", "b", 2)

    assert rules(run, drained=True) == []


def test_two_claims_without_an_end_between_them_are_found(run: Written) -> None:
    run.claim("a", 1)
    run.claim("b", 2)
    run.note("complete", "b", 2)

    (fault,) = faults(run)

    assert fault.rule == "one fence"
    assert [entry.owner for entry in fault.entries] == ["a", "b"]


@pytest.mark.parametrize("end", ["unknown", None])
def test_an_end_that_may_have_been_committed_is_both_worlds(run: Written, end: str | None) -> None:
    run.claim("a", 1)
    run.note("release", "a", 1, end=end)
    run.claim("b", 2, attempts=1)

    assert rules(run) == []


def test_what_was_rolled_back_does_not_count(run: Written) -> None:
    run.claim("a", 1)
    run.note("release", "a", 1, end="rolled back")
    run.claim("b", 2, attempts=1)

    assert rules(run) == ["one fence"]


def test_a_claim_that_may_not_have_been_committed_holds_nobody_up(run: Written) -> None:
    run.claim("a", 1, end="unknown")
    run.claim("b", 2, attempts=1)
    run.note("complete", "b", 2)
    run.claim("c", 3, key=8, end="unknown")
    run.note("reap", "c", 3, key=8)
    run.claim("d", 4, key=8, attempts=2)

    assert rules(run) == []


def test_what_follows_a_claim_proves_that_it_was_committed(run: Written) -> None:
    run.claim("a", 1, end="unknown")
    run.note("renew", "a", 1, 2)
    run.claim("b", 3, attempts=2)

    assert rules(run) == ["one fence"]


def test_a_finish_behind_the_fence_of_a_claim_that_was_rolled_back_is_found(run: Written) -> None:
    run.claim("a", 1, end="rolled back")
    run.note("complete", "a", 1)

    (fault,) = faults(run)

    assert fault.rule == "fenced finish"
    assert "rolled back" in fault.text


def test_a_finish_finds_its_claim_by_any_of_its_dates(run: Written) -> None:
    run.claim("a", 1)
    run.note("renew", "a", 1, 2)
    run.note("reap", "a", 2)  # a reap knows the newest date only
    run.claim("a", 3, attempts=2)
    run.note("complete", "a", 3)

    assert rules(run) == []


def test_a_renewal_after_anothers_claim_is_found(run: Written) -> None:
    run.claim("a", 1)
    run.note("reap", "a", 1)
    run.claim("b", 2, attempts=2)
    run.note("renew", "a", 1, 3, at=3)

    assert rules(run) == ["fenced finish"]


def test_a_finished_job_is_not_claimed_again_unless_it_was_retried(run: Written) -> None:
    run.claim("a", 1)
    run.note("complete", "a", 1)
    run.claim("b", 2, attempts=1)
    assert rules(run) == ["finished"]

    run.note("complete", "b", 2)
    run.note("retry")
    run.claim("c", 3, attempts=1)

    assert rules(run) == ["finished"]


def test_the_next_step_of_a_workflow_claims_what_a_step_has_completed(run: Written) -> None:
    run.claim("a", 1, fence="checking", attempts=2)
    run.note("complete", "a", 1, fence="checking")
    run.claim("b", 2, fence="sending", attempts=1)

    assert rules(run) == []


def test_a_lost_claim_and_the_begin_of_a_handler_end_nothing(run: Written) -> None:
    run.claim("a", 1)
    run.note("complete", "a", 1, event="after_lost")
    run.note("start", "a", 1, event="after_start")
    run.note("reap", "a", 1)

    assert rules(run) == []


def test_files_of_several_processes_are_one_history(run: Written) -> None:
    run.claim("a", 1, file="first")
    run.claim("b", 3, file="second", attempts=2)
    run.note("fail", "a", 1, file="first")
    run.note("complete", "b", 3, file="second")

    assert rules(run) == []


def test_a_waiting_job_is_lost_only_where_the_run_was_drained(run: Written) -> None:
    run.note("flush", key=8)
    run.claim("a", 1)

    assert rules(run) == []
    assert sorted(fault.row[1] for fault in faults(run, drained=True)) == ["[7]", "[8]"]


@pytest.mark.parametrize(
    ("line", "message"),
    [("{}", "no line of a ledger"), ("claim", "no JSON"), ('{"n": 1}', "no line of a ledger")],
)
def test_a_line_of_something_else_is_refused_with_its_number(
    tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(f"{line}\n\n", "utf-8")

    with pytest.raises(ArgumentError, match=rf"history.jsonl:1 is {message}"):
        check_files(path)


def test_the_last_line_may_be_cut(run: Written) -> None:
    run.claim("a", 1)
    (path,) = run.files()
    path.write_text(path.read_text("utf-8") + '{"n": "x-', "utf-8")

    assert check_files(path) == []


def test_twice_the_history_takes_twice_the_work(run: Written) -> None:
    for number in range(400):
        run.claim("a", 1 + number * 3 % 50, key=number)
        run.note("complete", "a", 1 + number * 3 % 50, key=number)
    (path,) = run.files()
    lines = path.read_text("utf-8").splitlines(keepends=True)

    def asked(part: list[str]) -> int:
        path.write_text("".join(part), "utf-8")
        calls = [0]

        def count(frame: Any, kind: str, arg: Any) -> None:
            calls[0] += kind == "call"

        sys.setprofile(count)
        try:
            assert list(check(History.read(path))) == []
        finally:
            sys.setprofile(None)
        return calls[0]

    half = asked(lines[: len(lines) // 2])
    assert asked(lines) < 2.1 * half


def test_a_clock_that_was_set_back_leaves_the_order_to_the_processes(run: Written) -> None:
    run.claim("a", 3000)
    run.note("reap", "a", 3000)
    run.claim("b", 5, attempts=2)  # the clock says earlier, and it is later
    run.note("complete", "b", 5)

    assert rules(run) != []
    assert rules(run, clock_steps=True) == []


def test_a_clock_that_was_set_back_between_renewals_misleads_no_rule(run: Written) -> None:
    run.claim("a", 3000)
    run.note("renew", "a", 3000, 3001)
    run.note("renew", "a", 3001, 5)
    run.note("reap", "a", 5)
    run.claim("b", 3300, attempts=2)

    assert rules(run) == ["renewal"]
    assert rules(run, clock_steps=True) == []


def test_fences_stay_fences_while_the_clock_is_stepped(run: Written) -> None:
    run.claim("a", 3000)
    run.claim("b", 5, attempts=2)
    assert rules(run, clock_steps=True) == ["one fence"]

    run.note("complete", "b", 5)
    run.note("complete", "a", 3000)
    assert "finished" in rules(run, clock_steps=True)

    run.note("retry")
    run.claim("a", 3000)
    assert "own fence" in rules(run, clock_steps=True)


def test_an_owner_that_was_taken_for_dead_and_claims_again_is_found(run: Written) -> None:
    claims_again_after_its_death(run)

    assert rules(run) == ["owner life"]


def test_an_owner_whose_lost_lock_was_not_told_yet_may_claim_again(run: Written) -> None:
    claims_again_after_its_death(run)
    # As a network that was cut hid the end of its connection; its next claim has another name.
    run.note("check", event="after_lock_lost", key=9)

    assert rules(run) == []


def test_a_later_name_whose_lock_was_lost_is_no_excuse_for_the_name_before(run: Written) -> None:
    claims_again_after_its_death(run)
    run.claim("host~1~c", 30, key=10)
    run.note("check", event="after_lock_lost", key=9)

    assert rules(run) == ["owner life"]


def claims_again_after_its_death(run: Written) -> None:
    run.claim("host~1~b", 1)
    for second in range(2, 5):  # beyond the skew of two processes
        run.note("flush", key=second + 10)
    run.note("reap", "host~1~b", 1, error=DEAD, file="other")
    for second in range(6, 9):
        run.note("flush", key=second + 10)
    run.claim("host~1~b", 20, key=8)


def test_a_renewal_that_a_reap_overlooked_is_found_while_the_clock_is_stepped(
    run: Written,
) -> None:
    run.claim("a", 3000)
    run.note("renew", "a", 3000, 5)
    run.note("reap", "a", 3000)

    assert rules(run, clock_steps=True) == ["renewal"]
