"""Histories written by hand: what the checker finds, and what it must not find."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.evidence.checker import check, check_files
from tests.evidence.history import History
from tests.evidence.queue_rules import DEAD
from tests.evidence.written import Written


def rules(written: Written, **how: Any) -> list[str]:
    return [fault.rule for fault in check_files(*written.files(), **how)]


@pytest.fixture
def run(tmp_path: Path) -> Written:
    return Written(tmp_path)


# -- each rule finds what breaks it ----------------------------------------------


def end_behind_a_lost_fence(run: Written) -> None:
    run.claim("a", 1)
    run.note("reap", "a", 1)
    run.claim("b", 2, attempts=2)
    run.note("complete", "a", 1)


def claim_twice_with_one_date(run: Written) -> None:
    run.claim("a", 1)
    run.note("reap", "a", 1)
    run.claim("a", 1, attempts=2)


def claim_what_is_claimed(run: Written) -> None:
    run.claim("a", 1)
    run.claim("b", 2, attempts=2)


def claim_what_is_done(run: Written) -> None:
    run.claim("a", 1)
    run.note("complete", "a", 1)
    run.claim("b", 2)


def claim_by_another_clock(run: Written) -> None:
    run.claim("a", 5)
    run.note("complete", "a", 5)
    run.note("retry")
    run.claim("b", 3)
    run.note("release", "b", 3)


def miss_a_renewal(run: Written) -> None:
    run.claim("a", 1)
    run.note("renew", "a", 1, 2)
    run.note("reap", "a", 1)


def count_a_release(run: Written) -> None:
    run.claim("a", 1)
    run.note("release", "a", 1)
    run.claim("b", 2, attempts=2)


def leave_a_job(run: Written) -> None:
    run.note("flush")


def claim_the_second_job_first(run: Written, **queue: Any) -> None:
    for key in (1, 2):
        run.note("flush", key=key)
    for key in (2, 1):
        told = {"order": [key], "keys": [["ann"]]}
        run.claim("a", 40 - key, key=key, job=told, **queue)
        run.note("complete", "a", 40 - key, key=key)


def claim_the_second_job_of_a_key_first(run: Written) -> None:
    claim_the_second_job_first(run, limits=[[["account"], 1, True]])


def claim_in_no_order(run: Written) -> None:
    claim_the_second_job_first(run, strict=True)


def claim_two_of_a_key(run: Written) -> None:
    for key in (1, 2):
        run.claim("a", key, key=key, job={"keys": [["ann"]]}, limits=[[["account"], 1, False]])


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (end_behind_a_lost_fence, "fenced finish"),
        (claim_twice_with_one_date, "own fence"),
        (claim_what_is_claimed, "one fence"),
        (claim_what_is_done, "finished"),
        (claim_by_another_clock, "clock"),
        (miss_a_renewal, "renewal"),
        (count_a_release, "attempts"),
        (claim_in_no_order, "claim order"),
        (claim_the_second_job_of_a_key_first, "key order"),
        (claim_two_of_a_key, "key limit"),
        (leave_a_job, "lost job"),
    ],
)
def test_a_broken_promise_is_found_by_its_rule(
    run: Written, broken: Callable[[Written], None], rule: str
) -> None:
    broken(run)

    assert rules(run, drained=rule == "lost job") == [rule]


# -- what may have happened otherwise ----------------------------------------------


@pytest.mark.parametrize("end", ["unknown", None])
def test_an_end_that_may_have_been_committed_is_both_worlds(run: Written, end: str | None) -> None:
    run.claim("a", 1)
    run.note("release", "a", 1, end=end)
    run.claim("b", 2)

    assert rules(run) == []


def test_what_was_rolled_back_does_not_count(run: Written) -> None:
    run.claim("a", 1)
    run.note("release", "a", 1, end="rolled back")
    run.claim("b", 2)

    assert rules(run) == ["one fence"]


def test_a_claim_that_may_not_have_been_committed_holds_nobody_up(run: Written) -> None:
    run.claim("a", 1, end="unknown")
    run.claim("b", 2)
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

    assert rules(run) == ["fenced finish"]


def test_a_finish_finds_its_claim_by_any_of_its_dates(run: Written) -> None:
    run.claim("a", 1)
    run.note("renew", "a", 1, 2)
    run.note("reap", "a", 2)  # a reap knows the newest date only
    run.claim("a", 3, attempts=2)
    run.note("complete", "a", 3)

    assert rules(run, drained=True) == []


def test_a_renewal_after_anothers_claim_is_found(run: Written) -> None:
    run.claim("a", 1)
    run.note("reap", "a", 1)
    run.claim("b", 2, attempts=2)
    run.note("renew", "a", 1, 3, at=3)

    assert rules(run) == ["fenced finish"]


def test_a_finished_job_is_not_claimed_again_unless_it_was_retried(run: Written) -> None:
    run.claim("a", 1)
    run.note("complete", "a", 1)
    run.claim("b", 2)
    run.note("complete", "b", 2)
    run.note("retry")
    run.claim("c", 3)

    assert rules(run) == ["finished"]


def test_the_next_step_of_a_workflow_claims_what_a_step_has_completed(run: Written) -> None:
    run.claim("a", 1, fence="checking", attempts=2)
    run.note("complete", "a", 1, fence="checking")
    run.claim("b", 2, fence="sending")

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

    assert (rules(run), rules(run, drained=True)) == ([], ["lost job"] * 2)


@pytest.mark.parametrize("line", ["{}", "claim", '{"n": 1}'])
def test_a_line_of_something_else_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(f"{line}\n\n", "utf-8")

    with pytest.raises(ValueError, match=r"history.jsonl:1 is no"):
        check_files(path)


def test_the_last_line_may_be_cut(run: Written) -> None:
    run.claim("a", 1)
    (path,) = run.files()
    path.write_text(path.read_text("utf-8") + '{"n": "x-', "utf-8")

    assert rules(run) == []


def test_twice_the_history_takes_twice_the_work(run: Written) -> None:
    for number in range(400):
        run.claim("a", 1 + number * 3 % 50, key=number)
        run.note("complete", "a", 1 + number * 3 % 50, key=number)
    (path,) = run.files()
    lines = path.read_text("utf-8").splitlines(keepends=True)

    def calls(part: list[str]) -> int:
        path.write_text("".join(part), "utf-8")
        kinds: list[str] = []
        sys.setprofile(lambda frame, kind, arg: kinds.append(kind))
        assert list(check(History.read(path))) == []
        sys.setprofile(None)
        return kinds.count("call")

    assert calls(lines) < 2.1 * calls(lines[: len(lines) // 2])


# -- owners, and a clock that is stepped -------------------------------------------


def lost_lock(run: Written) -> None:
    run.note("check", event="after_lock_lost", key=9)


def lost_lock_of_a_later_name(run: Written) -> None:
    run.claim("host~1~c", 30, key=10)
    lost_lock(run)


@pytest.mark.parametrize(
    ("then", "found"),
    [
        (lambda run: None, ["owner life"]),
        (lost_lock, []),  # a cut network hid the loss; its next claim has another name
        (lost_lock_of_a_later_name, ["owner life"]),
    ],
)
def test_an_owner_that_a_reap_found_dead_claims_only_until_it_is_told(
    run: Written, then: Callable[[Written], None], found: list[str]
) -> None:
    run.claim("host~1~b", 1)
    for second in range(2, 5):  # beyond the skew of two processes
        run.note("flush", key=second + 10)
    run.note("reap", "host~1~b", 1, error=DEAD, file="other")
    for second in range(6, 9):
        run.note("flush", key=second + 10)
    run.claim("host~1~b", 20, key=8)
    then(run)

    assert rules(run) == found


def test_a_clock_that_was_set_back_leaves_the_order_to_the_processes(run: Written) -> None:
    run.claim("a", 3000)
    run.note("reap", "a", 3000)
    run.claim("b", 5, attempts=2)  # the clock says earlier, and it is later
    run.note("complete", "b", 5)

    assert rules(run) != []
    assert rules(run, clock_steps=True) == []


@pytest.mark.parametrize(("seen", "found"), [(5, []), (3001, ["renewal"])])
def test_a_reap_sees_the_last_renewal_while_the_clock_is_stepped(
    run: Written, seen: int, found: list[str]
) -> None:
    run.claim("a", 3000)
    run.note("renew", "a", 3000, 3001)
    run.note("renew", "a", 3001, 5)
    run.note("reap", "a", seen)
    run.claim("b", 3300, attempts=2)

    assert rules(run, clock_steps=True) == found


def test_fences_stay_fences_while_the_clock_is_stepped(run: Written) -> None:
    run.claim("a", 3000)
    run.claim("b", 5, attempts=2)
    assert rules(run, clock_steps=True) == ["one fence"]

    run.note("complete", "b", 5)
    run.note("complete", "a", 3000)
    run.note("retry")
    run.claim("a", 3000)
    assert {"finished", "own fence"} <= set(rules(run, clock_steps=True))


# -- the command ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "code", "told"),
    [
        (True, 0, "2 events of 1 rows: 0 faults"),
        (False, 1, "lost job: email [7]: the queue was drained, and this claim has not finished"),
        (None, 2, "cannot be read: No such file or directory"),
    ],
)
def test_the_command_tells_by_stories_and_its_exit_code(
    run: Written, tmp_path: Path, ends: bool | None, code: int, told: str
) -> None:
    if ends is not None:
        run.claim("w", 1)
    if ends:
        run.note("complete", "w", 1)

    command = [sys.executable, "-m", "tests.evidence", str(tmp_path / "history.jsonl")]
    done = subprocess.run([*command, "--drained"], capture_output=True, text=True, check=False)

    assert (done.returncode, told in done.stdout + done.stderr) == (code, True), done
