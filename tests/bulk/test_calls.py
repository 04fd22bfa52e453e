"""The calls of a load: what each does in each state, who may call, and how a call is stopped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sa_jobqueue import LockTimeout
from sa_jobqueue.bulk import (
    BulkLoad,
    FileLog,
    InvalidState,
    LoadState,
    LoadStopped,
    Log,
    Metadata,
    Progress,
)

from .fakes import Killed, Numbers

pytestmark = pytest.mark.only_on("sqlite")  # the source has no database

ALL = set(range(10))

#: The state after each call; a call that has none is refused.
ENDS = {
    "prepare": {"STARTING": "PREPARING", "UNPREPARED": "PREPARING"},
    "insert": {"PREPARING": "CLEANING"},
    "restore": {
        **{state: state for state in ("STARTING", "PREPARING", "CANCELLED", "CLEANING")},
        "FINISHED": "FINISHED",
        "UNPREPARED": "CLEANING",
        "BLOCKED": "CLEANING",
    },
    "run": dict.fromkeys(
        ("STARTING", "PREPARING", "UNPREPARED", "BLOCKED", "CLEANING"), "CLEANING"
    ),
    "rollback": dict.fromkeys(
        ("STARTING", "PREPARING", "UNPREPARED", "BLOCKED", "CLEANING", "CANCELLED"), "CANCELLED"
    ),
    "clean": {"CLEANING": "FINISHED", "CANCELLED": "FINISHED"},
}


@pytest.fixture
def source() -> Numbers:
    """Ten numbers, three a batch."""
    return Numbers(10, 3)


def brought_to(state: str, source: Numbers, log: Log) -> BulkLoad[Numbers]:
    """Return a load in this state."""
    load = BulkLoad(source, log)
    if state == "PREPARING":
        load.prepare()
    elif state == "UNPREPARED":
        with pytest.raises(Killed):
            BulkLoad(source.anew().killed("before", "divide", 6), log).prepare()
    elif state == "BLOCKED":
        with pytest.raises(Killed):
            BulkLoad(source.anew().killed("after", "update", 6), log).run()
    elif state in ("CLEANING", "CANCELLED", "FINISHED"):
        load.run()
        if state == "CANCELLED":
            load.rollback()
        if state == "FINISHED":
            load.clean()
    assert load.state == state
    return load


@pytest.mark.parametrize("state", [state for state in LoadState if state != "INSERTING"])
@pytest.mark.parametrize("verb", ENDS)
def test_a_call_changes_the_state_as_in_the_diagram_or_is_refused(
    verb: str, state: str, source: Numbers, log: FileLog
) -> None:
    load = brought_to(state, source, log)

    if state in ENDS[verb]:
        getattr(load, verb)()
        assert load.state == ENDS[verb][state]
    else:
        with pytest.raises(InvalidState) as refused:
            getattr(load, verb)()
        assert load.state == refused.value.state == state
        fitting = {call for call, ends in ENDS.items() if ends.get(state, state) != state}
        assert fitting <= set(refused.value.calls) <= {*fitting, "rollback"}
    if load.state in ("CANCELLED", "CLEANING"):
        assert source.table == (ALL if load.state == "CLEANING" else set())


@pytest.mark.parametrize("then", ["restore", "rollback"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("first", [0, 3, 9])
def test_batches_that_may_be_in_are_written_again_and_no_others(
    then: str, when: str, first: int, source: Numbers, new_log: Callable[[], Log]
) -> None:
    with pytest.raises(Killed):
        BulkLoad(source.killed(when, "update", first), new_log()).run()
    again = BulkLoad(source.anew(), new_log())
    assert again.state is LoadState.BLOCKED

    getattr(again, then)()

    written = {"restore": range(first, 10, 3), "rollback": range(first, -1, -3)}[then]
    done = again.source.updated or again.source.rolled_back
    assert [batch[0] for batch in done] == list(written)
    assert source.table == (ALL if then == "restore" else set())


def test_a_source_may_change_as_long_as_the_redo_log_is_not_complete(
    source: Numbers, new_log: Callable[[], Log]
) -> None:
    with pytest.raises(Killed) as raised:
        BulkLoad(source.killed("before", "divide", 6), new_log()).prepare()
    assert "no row is in the table" in raised.value.__notes__[0]
    changed = BulkLoad(Numbers(10, 4), new_log())

    changed.run()

    assert changed.source.updated == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert (changed.status().batch_size, changed.status().divided) == (4, 3)


def test_a_load_has_one_caller_at_a_time_and_any_readers(
    source: Numbers, new_log: Callable[[], Log]
) -> None:
    load, other = BulkLoad(source, new_log()), BulkLoad(source.anew(), new_log())
    seen: list[Progress] = []

    def look(verb: str, batch: list[int]) -> None:
        for call in (load.rollback, other.run):
            with pytest.raises(LockTimeout, match="Another manager works with the log"):
                call()
        assert load.state is LoadState.INSERTING
        seen.append(other.status())

    source.after = look
    load.run()

    assert [(one.state, one.divided, one.inserted) for one in seen] == [
        ("INSERTING", batch + 1, batch) for batch in range(4)
    ]
    other.rollback()
    assert source.table == set()


@pytest.mark.parametrize(("verb", "written"), [("run", "updated"), ("rollback", "rolled_back")])
def test_stop_ends_after_the_current_batch_and_says_how_to_go_on(
    verb: str, written: str, source: Numbers, log: FileLog
) -> None:
    load = BulkLoad(source, log)
    if verb == "rollback":
        load.run()
    source.after = lambda verb, batch: load.stop()

    with pytest.raises(LoadStopped, match=r"batches.*run\(\) goes on, rollback\(\)"):
        getattr(load, verb)()

    assert load.state is LoadState.BLOCKED
    assert len(getattr(source, written)) == 1
    source.after = lambda verb, batch: None
    load.run()
    assert source.table == ALL


@pytest.mark.parametrize(("total", "last"), [(10, 10), (None, 12)])
def test_progress_is_reported_after_each_batch(
    source: Numbers, log: FileLog, total: int | None, last: int
) -> None:
    told: list[Progress] = []
    load = BulkLoad(source, log, progress=told.append)
    source.metadata = lambda: Metadata(total=total, batch_size=3)  # type: ignore[method-assign]

    load.prepare()
    load.insert()

    assert [(one.divided, one.inserted) for one in told] == [
        *((divided, 0) for divided in (1, 2, 3, 4)),
        *((4, inserted) for inserted in (1, 2, 3, 4)),
    ]
    assert [one.rows for one in told[4:]] == [3, 6, 9, last]
    assert [one.batches for one in told] == [total and 4] * 4 + [4] * 4
    assert [str(told[place]) for place in (0, 7)] == [
        f"PREPARING: 0{' of 4' if total else ''} batches, 0 rows inserted",
        f"INSERTING: 4 of 4 batches, {'' if total else 'at most '}{last} rows inserted",
    ]


def test_a_load_without_rows_finishes(new_log: Callable[[], Log]) -> None:
    load = BulkLoad(Numbers(0, 3), new_log())

    load.run()

    assert load.state is LoadState.CLEANING
