"""The calls of a load: what each does in each state, who may call, and how a call is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from sa_jobqueue import LockTimeout
from sa_jobqueue.bulk import (
    BulkLoad,
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
    verb: str, state: str, source: Numbers, new_log: Callable[[], Log]
) -> None:
    load = brought_to(state, source, new_log())

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


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("first", [0, 3, 6, 9])
def test_restore_inserts_the_batches_that_are_not_known_to_be_in(
    when: str, first: int, source: Numbers, new_log: Callable[[], Log]
) -> None:
    with pytest.raises(Killed):
        BulkLoad(source.killed(when, "update", first), new_log()).run()
    again = BulkLoad(source.anew(), new_log())
    assert again.state is LoadState.BLOCKED

    again.restore()

    assert [batch[0] for batch in again.source.updated] == list(range(first, 10, 3))
    assert (again.state, source.table) == ("CLEANING", ALL)
    assert (again.status().divided, again.status().inserted) == (4, 4)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("first", [0, 3, 6, 9])
def test_rollback_deletes_batches_that_may_be_in_and_nothing_else(
    when: str, first: int, source: Numbers, new_log: Callable[[], Log]
) -> None:
    source.table.update({6, 7, 8} if (when, first) == ("after", 3) else ())
    foreign = set(source.table)
    with pytest.raises(Killed):
        BulkLoad(source.killed(when, "update", first), new_log()).run()
    again = BulkLoad(source.anew(), new_log())

    again.rollback()

    assert [batch[0] for batch in again.source.rolled_back] == list(range(first, -1, -3))
    assert (again.state, source.table) == ("CANCELLED", foreign)


@pytest.mark.parametrize(
    ("then", "again", "table"), [("restore", [3, 6, 9], ALL), ("rollback", [3, 0], set[int]())]
)
def test_a_killed_rollback_goes_on_or_is_taken_back(
    then: str, again: list[int], table: set[int], source: Numbers, new_log: Callable[[], Log]
) -> None:
    BulkLoad(source, new_log()).run()
    with pytest.raises(Killed):
        BulkLoad(source.anew().killed("after", "rollback", 3), new_log()).rollback()
    load = BulkLoad(source.anew(), new_log())
    assert load.state is LoadState.BLOCKED

    getattr(load, then)()

    written = load.source.updated or load.source.rolled_back
    assert [batch[0] for batch in written] == again
    assert source.table == table


def test_the_first_batch_is_in_before_the_last_is_divided(
    source: Numbers, new_log: Callable[[], Log]
) -> None:
    seen: list[tuple[str, int]] = []
    source.before = lambda verb, batch: seen.append((verb, batch[0]))

    BulkLoad(source, new_log()).run()

    assert seen == [(verb, first) for first in (0, 3, 6, 9) for verb in ("divide", "update")]


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


def test_a_load_that_another_process_has_prepared_is_inserted(
    source: Numbers, new_log: Callable[[], Log]
) -> None:
    BulkLoad(source, new_log()).prepare()
    again = BulkLoad(source.anew(), new_log())
    again.source.before = lambda verb, batch: verb == "divide" and pytest.fail("divided again")

    again.insert()

    assert source.table == ALL


def test_a_load_has_one_caller_at_a_time_and_any_readers(
    source: Numbers, new_log: Callable[[], Log]
) -> None:
    load, other = BulkLoad(source, new_log()), BulkLoad(source.anew(), new_log())
    seen: list[Progress] = []

    def look(verb: str, batch: list[int]) -> None:
        for call in (load.rollback, other.run, other.clean):
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


def test_clean_makes_room_for_a_new_load(source: Numbers, new_log: Callable[[], Log]) -> None:
    first = brought_to("CANCELLED", source, new_log())
    with pytest.raises(InvalidState, match=r"CANCELLED; call clean\(\)"):
        first.run()

    first.clean()
    BulkLoad(source, new_log()).run()

    assert source.table == ALL
    assert BulkLoad(source, new_log()).status().inserted == 4


@pytest.mark.parametrize(("verb", "written"), [("run", "updated"), ("rollback", "rolled_back")])
def test_stop_ends_after_the_current_batch_and_says_how_to_go_on(
    verb: str, written: str, source: Numbers, new_log: Callable[[], Log]
) -> None:
    load = BulkLoad(source, new_log())
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


def test_progress_is_reported_after_each_batch(source: Numbers, new_log: Callable[[], Log]) -> None:
    told: list[Progress] = []
    load = BulkLoad(source, new_log(), progress=told.append)

    load.prepare()
    load.insert()

    assert [(one.divided, one.inserted) for one in told] == [
        *((divided, 0) for divided in (1, 2, 3, 4)),
        *((4, inserted) for inserted in (1, 2, 3, 4)),
    ]
    assert [one.rows for one in told[4:]] == [3, 6, 9, 10]
    assert {one.batches for one in told} == {4}
    assert {one.state for one in told} == {"PREPARING", "INSERTING"}


@pytest.mark.parametrize(
    ("inserted", "batches", "total", "said"),
    [
        (3, None, None, "3 batches, 9 rows"),
        (4, 4, None, "4 of 4 batches, at most 12 rows"),
        (0, 4, None, "0 of 4 batches, 0 rows"),
        (4, 4, 10, "4 of 4 batches, 10 rows"),
    ],
)
def test_progress_says_no_more_rows_than_are_known(
    inserted: int, batches: int | None, total: int | None, said: str
) -> None:
    progress = Progress(
        state=LoadState.BLOCKED, inserted=inserted, batches=batches, batch_size=3, total=total
    )

    assert str(progress) == f"BLOCKED: {said} inserted"


def test_the_number_of_batches_is_known_when_all_are_divided(
    source: Numbers, new_log: Callable[[], Log]
) -> None:
    source.metadata = lambda: Metadata(total=None, batch_size=3)  # type: ignore[method-assign]
    told: list[int | None] = []
    load = BulkLoad(source, new_log(), progress=lambda progress: told.append(progress.batches))

    load.run()

    assert told == [None] * 4
    assert load.status().batches == 4


class AsyncNumbers(Numbers):
    """Numbers that are divided asynchronously."""

    loop: asyncio.AbstractEventLoop

    def divide(self) -> AsyncIterator[list[int]]:  # type: ignore[override]  # either is allowed
        plain = super().divide

        async def batches() -> AsyncIterator[list[int]]:
            self.loop = asyncio.get_running_loop()
            for batch in plain():
                await asyncio.sleep(0)
                yield batch

        return batches()


def test_a_source_may_divide_itself_asynchronously(new_log: Callable[[], Log]) -> None:
    source = AsyncNumbers(10, 3)
    with pytest.raises(Killed):
        BulkLoad(source.killed("before", "update", 6), new_log()).run()
    assert source.loop.is_closed()

    BulkLoad(AsyncNumbers(10, 3, source.table), new_log()).run()

    assert source.table == ALL


def test_a_load_without_rows_finishes(new_log: Callable[[], Log]) -> None:
    load = BulkLoad(Numbers(0, 3), new_log())

    load.run()

    assert load.state is LoadState.CLEANING
