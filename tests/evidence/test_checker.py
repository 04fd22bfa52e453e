"""Histories written by hand: what the checker finds, and what it must not find."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.evidence.checker import check, check_files
from tests.evidence.history import History
from tests.evidence.written import Written

#: Jobs in a queue with an order: the second is claimed first.
SECOND_FIRST = (
    "flush key=1; flush key=2; claim a 38 key=2 order=2 {queue}; complete a 38 key=2; "
    "claim a 39 key=1 order=1 {queue}; complete a 39 key=1"
)

#: What a history shows, its steps, and the rules that it breaks.
HISTORIES = {
    # Each rule finds what breaks it.
    "a claim is ended behind a lost fence": (
        "claim a 1; reap a 1; claim b 2 attempts=2; complete a 1",
        ["fenced finish"],
    ),
    "two claims have one date": ("claim a 1; reap a 1; claim a 1 attempts=2", ["own fence"]),
    "a claim takes what is claimed": ("claim a 1; claim b 2 attempts=2", ["one fence"]),
    "a claim takes what is done": ("claim a 1; complete a 1; claim b 2", ["finished"]),
    "a claim is dated by another clock": (
        "claim a 5; complete a 5; retry; claim b 3; release b 3",
        ["clock"],
    ),
    "a reap misses a renewal": ("claim a 1; renew a 1 2; reap a 1", ["renewal"]),
    "a release counts as an attempt": (
        "claim a 1; release a 1; claim b 2 attempts=2",
        ["attempts"],
    ),
    "a strict queue is not in order": (SECOND_FIRST.format(queue="strict=yes"), ["claim order"]),
    "a key is not in order": (SECOND_FIRST.format(queue="limit=serial"), ["key order"]),
    "two jobs of a key are claimed": (
        "claim a 1 key=1 limit=1; claim a 2 key=2 limit=1",
        ["key limit"],
    ),
    "a renewal comes after another's claim": (
        "claim a 1; reap a 1; claim b 2 attempts=2; renew a 1 3 at=3",
        ["fenced finish"],
    ),
    # What may have happened otherwise.
    "an end that is unknown is both worlds": (
        "claim a 1; release a 1 end=unknown; claim b 2",
        [],
    ),
    "an end that is not noted is both worlds": ("claim a 1; release a 1 end=lost; claim b 2", []),
    "what was rolled back does not count": (
        "claim a 1; release a 1 end=rolled_back; claim b 2",
        ["one fence"],
    ),
    "a claim that may not be committed holds nobody up": (
        "claim a 1 end=unknown; claim b 2; complete b 2; claim c 3 key=8 end=unknown; "
        "reap c 3 key=8; claim d 4 key=8 attempts=2",
        [],
    ),
    "what follows a claim proves that it was committed": (
        "claim a 1 end=unknown; renew a 1 2; claim b 3 attempts=2",
        ["one fence"],
    ),
    "a finish has the fence of a claim that was rolled back": (
        "claim a 1 end=rolled_back; complete a 1",
        ["fenced finish"],
    ),
    "only a retry makes a finished job claimable": (
        "claim a 1; complete a 1; claim b 2; complete b 2; retry; claim c 3",
        ["finished"],
    ),
    "the next step of a workflow claims what a step has completed": (
        "claim a 1 fence=checking attempts=2; complete a 1 fence=checking; claim b 2 fence=sending",
        [],
    ),
    "a lost claim and the begin of a handler end nothing": (
        "claim a 1; complete a 1 event=after_lost; start a 1 event=after_start; reap a 1",
        [],
    ),
    "files of several processes are one history": (
        "claim a 1 file=first; claim b 3 file=second attempts=2; fail a 1 file=first; "
        "complete b 3 file=second",
        [],
    ),
    "a waiting job is lost only where the run was drained": ("flush key=8; claim a 1", []),
}

#: The same, at the end of a run that was drained.
DRAINED = {
    "nobody has claimed a job": ("flush", ["lost job"]),
    "nobody has claimed a job, and another is claimed": (
        "flush key=8; claim a 1",
        ["lost job"] * 2,
    ),
    "a finish finds its claim by any of its dates, a reap by the newest": (
        "claim a 1; renew a 1 2; reap a 2; claim a 3 attempts=2; complete a 3",
        [],
    ),
}

SET_BACK = "claim a 3000; reap a 3000; claim b 5 attempts=2; complete b 5"
RENEWED = "claim a 3000; renew a 3000 3001; renew a 3001 5; reap a {seen}; claim b 3300 attempts=2"
TWO_FENCES = "claim a 3000; claim b 5 attempts=2"

#: The same, where the database's clock was stepped.
CLOCK_STEPS = {
    "the processes' clocks tell the order": (SET_BACK, []),
    "a reap sees the last renewal": (RENEWED.format(seen=5), []),
    "a reap does not see the last renewal": (RENEWED.format(seen=3001), ["renewal"]),
    "fences stay fences": (TWO_FENCES, ["one fence"]),
    "a finished job is not claimed again, nor with a date that was": (
        f"{TWO_FENCES}; complete b 5; complete a 3000; retry; claim a 3000",
        ["attempts", "finished", "own fence"],
    ),
}

BEFORE = "claim host~1~b 1; flush key=12; flush key=13; flush key=14"
LATER = "flush key=16; flush key=17; flush key=18; claim host~1~b 20 key=8"
TAKEN_FOR_DEAD = f"{BEFORE}; reap host~1~b 1 error=dead_owner file=other; {LATER}"
TOLD = "check key=9 event=after_lock_lost"

#: The same, of an owner that a reap has taken for dead.
OWNERS = {
    "it claims again": (TAKEN_FOR_DEAD, ["owner life"]),
    "it was told later: a cut network hid the loss": (f"{TAKEN_FOR_DEAD}; {TOLD}", []),
    "a later name of its process was told": (
        f"{TAKEN_FOR_DEAD}; claim host~1~c 30 key=10; {TOLD}",
        ["owner life"],
    ),
}

OVERTAKEN = SECOND_FIRST.format(queue="")
UNSURE = f"{OVERTAKEN}; claim b 2 key=1 end=unknown"

#: The same, where later jobs may overtake an earlier one for 10 seconds.
PLACES = {
    "others overtake it 20 s before its claim": (OVERTAKEN.replace("39", "58"), ["place"]),
    "others overtake it a second before its claim": (OVERTAKEN, []),
    "it may have been claimed before": (UNSURE.replace("39", "58"), []),
}

ALL = [
    pytest.param(history, found, how, id=name)
    for table, how in (
        (HISTORIES | OWNERS, {}),
        (DRAINED, {"drained": True}),
        (CLOCK_STEPS, {"clock_steps": True}),
        (PLACES, {"overtaken": timedelta(seconds=10)}),
    )
    for name, (history, found) in table.items()
]


def rules(written: Written, *, clock_steps: bool = False, **how: Any) -> list[str]:
    history = History.read(*written.files(), clock_steps=clock_steps)
    return [fault.rule for fault in check(history, **how)]


@pytest.fixture
def run(tmp_path: Path) -> Written:
    return Written(tmp_path)


@pytest.mark.parametrize(("history", "found", "how"), ALL)
def test_a_broken_promise_is_found_by_its_rule_and_nothing_else_is_found(
    run: Written, history: str, found: list[str], how: dict[str, Any]
) -> None:
    run.tell(history)

    assert sorted(rules(run, **how)) == found


def test_a_clock_that_was_set_back_breaks_rules_unless_it_is_known(run: Written) -> None:
    run.tell(SET_BACK)

    assert rules(run) != []


@pytest.mark.parametrize("line", ["{}", "claim", '{"n": 1}'])
def test_a_line_of_something_else_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(f"{line}\n\n", "utf-8")

    with pytest.raises(ValueError, match=r"history.jsonl:1 is no"):
        check_files(path)


def test_the_last_line_may_be_cut(run: Written) -> None:
    run.tell("claim a 1")
    (path,) = run.files()
    path.write_text(path.read_text("utf-8") + '{"n": "x-', "utf-8")

    assert rules(run) == []


def test_twice_the_history_takes_twice_the_work(run: Written) -> None:
    for number in range(400):
        fence = f"a {1 + number * 3 % 50} key={number}"
        run.tell(f"claim {fence}; complete {fence}")
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


@pytest.mark.parametrize(
    ("history", "code", "told"),
    [
        ("claim w 1; complete w 1", 0, "2 events of 1 rows: 0 faults"),
        ("claim w 1", 1, "lost job: email [7]: the queue was drained, and this claim has not"),
        (None, 2, "cannot be read: No such file or directory"),
    ],
)
def test_the_command_tells_by_stories_and_its_exit_code(
    run: Written, tmp_path: Path, history: str | None, code: int, told: str
) -> None:
    if history is not None:
        run.tell(history)

    command = [sys.executable, "-m", "tests.evidence", str(tmp_path / "history.jsonl")]
    done = subprocess.run([*command, "--drained"], capture_output=True, text=True, check=False)

    assert (done.returncode, told in done.stdout + done.stderr) == (code, True), done
