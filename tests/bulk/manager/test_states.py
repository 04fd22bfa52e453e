"""The states of a load, and what each call does in each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sa_jobqueue.bulk import BulkLoad, FileLog, InvalidState, LoadState, Log, Metadata, Progress
from sa_jobqueue.bulk.log import REMOVED
from sa_jobqueue.bulk.progress import status_of
from sa_jobqueue.bulk.states import (
    BLOCKED,
    CANCELLED,
    CLEANING,
    FINISHED,
    INSERTING,
    NOTHING_TO_DO,
    PREPARING,
    STARTING,
    TRANSITIONS,
    UNPREPARED,
)
from tests.bulk.fakes import Killed, Numbers
from tests.bulk.manager.support import ALL, counts


def brought_to(state: LoadState, source: Numbers, log: Log) -> BulkLoad[Any]:
    """Return a manager of a load in this state."""
    load = BulkLoad(source, log)
    if state is PREPARING:
        load.prepare()
    elif state is UNPREPARED:
        with pytest.raises(Killed):
            BulkLoad(source.anew().killed("before", "divide", 6), log).prepare()
    elif state is BLOCKED:
        with pytest.raises(Killed):
            BulkLoad(source.anew().killed("after", "update", 6), log).run()
    elif state in (CLEANING, CANCELLED, FINISHED):
        load.run()
        if state is CANCELLED:
            load.rollback()
        if state is FINISHED:
            load.clean()
    assert load.state is state
    return load


def test_a_load_goes_from_starting_to_finished_call_by_call(source: Numbers, log: Log) -> None:
    load = BulkLoad(source, log)
    seen = [load.state]

    for call in (load.prepare, load.insert, load.clean):
        call()
        seen.append(load.state)

    assert seen == [STARTING, PREPARING, CLEANING, FINISHED]
    assert source.table == ALL


def test_after_prepare_redo_has_every_batch_and_the_table_nothing(
    source: Numbers, log: Log
) -> None:
    load = BulkLoad(source, log)

    load.prepare()

    load.close()
    assert counts(log) == (4, 0)
    assert source.table == set()


def test_run_inserts_all_and_a_second_run_does_nothing(source: Numbers, log: Log) -> None:
    BulkLoad(source, log).run()
    again = BulkLoad(source.anew(), log)

    again.run()

    assert again.state is CLEANING
    assert again.source.updated == []
    assert counts(log) == (4, 4)


def test_the_first_batch_is_inserted_before_the_last_is_divided(log: Log) -> None:
    source = Numbers(10, 3)
    seen: list[int] = []
    source.before = lambda verb, batch: seen.append(len(source.updated))

    BulkLoad(source, log).run()

    assert len(source.updated) == 4
    assert seen[-2] > 0


def test_a_redo_entry_is_there_before_its_batch(source: Numbers, tmp_path: Path) -> None:
    lines: list[int] = []
    redo = tmp_path / "log" / "redo.jsonl"
    source.before = lambda verb, batch: lines.append(
        redo.read_text().count("\n") if verb == "update" else 0
    )

    BulkLoad(source, FileLog(tmp_path / "log")).run()

    assert all(count >= 1 + number for number, count in enumerate(filter(None, lines), 1))


@pytest.mark.parametrize("state", [state for state in LoadState if state is not INSERTING])
@pytest.mark.parametrize("verb", ["prepare", "insert", "restore", "rollback", "clean", "run"])
def test_a_call_changes_the_state_as_in_the_diagram_or_is_refused(
    verb: str, state: LoadState, source: Numbers, log: Log
) -> None:
    load = brought_to(state, source, log)
    ends = {"prepare": PREPARING, "rollback": CANCELLED, "clean": FINISHED}
    begins = {here for here, _ in TRANSITIONS[verb]}
    if verb == "run":
        begins |= {PREPARING, UNPREPARED, BLOCKED}
    table = set(source.table)

    if state in NOTHING_TO_DO.get(verb, ()):
        getattr(load, verb)()
        assert (load.state, source.table) == (state, table)
    elif state in begins:
        getattr(load, verb)()
        assert load.state is ends.get(verb, CLEANING)
    else:
        with pytest.raises(InvalidState) as refused:
            getattr(load, verb)()
        assert refused.value.state == state
        assert load.state is state
        assert not {verb, "killed"} & set(refused.value.calls)
    if load.state is CANCELLED:
        assert source.table == set()
    if load.state is CLEANING:
        assert source.table == ALL
    load.close()


def test_a_refusal_names_the_calls_that_fit(source: Numbers, log: Log) -> None:
    load = brought_to(BLOCKED, source, log)

    with pytest.raises(InvalidState, match=r"restore\(\), rollback\(\), run\(\)") as refused:
        load.insert()

    assert refused.value.calls == ("restore", "rollback", "run")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("first", [0, 3, 6, 9])
def test_restore_inserts_the_batches_that_are_in_redo_and_not_in_undo(
    when: str, first: int, source: Numbers, log: Log
) -> None:
    with pytest.raises(Killed):
        BulkLoad(source.killed(when, "update", first), log).run()
    again = BulkLoad(source.anew(), log)
    assert again.state is BLOCKED

    again.restore()

    assert [batch[0] for batch in again.source.updated] == list(range(first, 10, 3))
    assert (again.state, source.table) == (CLEANING, ALL)
    assert counts(log) == (4, 4)
    again.restore()
    assert len(again.source.updated) == (12 - first) // 3


def test_the_redo_log_is_written_anew_after_a_kill_while_preparing(
    source: Numbers, log: Log
) -> None:
    with pytest.raises(Killed) as raised:
        BulkLoad(source.killed("before", "divide", 6), log).prepare()
    assert "no row is in the table" in raised.value.__notes__[0]
    again = BulkLoad(source.anew(), log)
    divided: list[int] = []
    again.source.before = lambda verb, batch: divided.append(batch[0])
    assert again.state is UNPREPARED

    again.prepare()

    assert divided == [0, 3, 6, 9]
    again.close()
    assert counts(log) == (4, 0)


def test_a_load_that_a_former_process_prepared_is_prepared_anew(
    source: Numbers, log: Log, new_log: Callable[[], Log]
) -> None:
    load = BulkLoad(source, log)
    load.prepare()
    load.close()
    with pytest.raises(Killed):
        BulkLoad(source.anew().killed("before", "divide", 6), new_log()).run()
    assert source.table < ALL

    BulkLoad(source.anew(), new_log()).run()

    assert source.table == ALL
    assert counts(log) == (4, 4)


def test_a_log_that_was_used_before_is_read_anew(
    source: Numbers, log: Log, new_log: Callable[[], Log]
) -> None:
    old = BulkLoad(source, log)
    old.run()
    other = BulkLoad(source.anew(), new_log())
    other.rollback()
    other.clean()

    BulkLoad(source.anew(), log).run()

    assert source.table == ALL
    assert counts(log) == (4, 4)


def test_the_number_of_batches_is_known_when_all_rows_are_divided(
    source: Numbers, log: Log, new_log: Callable[[], Log]
) -> None:
    source.metadata = lambda: Metadata(total=None, batch_size=3)  # type: ignore[method-assign]
    seen: list[int | None] = []

    with BulkLoad(source, log, progress=lambda told: seen.append(told.batches)) as load:
        load.prepare()
        seen.append(load.status().batches)

    assert seen == [None, None, None, None, 4]
    assert status_of(new_log()).batches == 4


def test_a_source_may_change_as_long_as_no_row_is_in_the_table(source: Numbers, log: Log) -> None:
    with pytest.raises(Killed):
        BulkLoad(source.killed("before", "divide", 6), log).prepare()
    changed = Numbers(10, 4)

    BulkLoad(changed, log).run()

    assert changed.updated == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert BulkLoad(changed, log).status().batch_size == 4


def test_a_redo_log_that_inserts_already_is_continued(source: Numbers, log: Log) -> None:
    with pytest.raises(Killed):
        BulkLoad(source.killed("before", "divide", 6), log).run()
    again = source.anew()
    written: list[int] = []
    add_redo = log.add_redo

    def see(number: int, batch: Any) -> None:
        written.append(number)
        add_redo(number, batch)

    log.add_redo = see  # type: ignore[method-assign]  # recorded, then called

    BulkLoad(again, log).run()

    assert written == [2, 3]
    assert source.table == ALL
    assert counts(log) == (4, 4)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("first", [0, 3, 6, 9])
def test_rollback_deletes_batches_that_may_be_committed_and_nothing_else(
    when: str, first: int, source: Numbers, log: Log
) -> None:
    source.table.update({6, 7, 8} if (when, first) == ("after", 3) else ())
    foreign = set(source.table)
    with pytest.raises(Killed):
        BulkLoad(source.killed(when, "update", first), log).run()
    again = BulkLoad(source.anew(), log)

    again.rollback()

    assert [batch[0] for batch in again.source.rolled_back] == list(range(first, -1, -3))
    assert (again.state, source.table) == (CANCELLED, foreign)
    again.rollback()
    assert BulkLoad(source.anew(), log).state is CANCELLED


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_restore_after_a_killed_rollback_is_exact(when: str, source: Numbers, log: Log) -> None:
    BulkLoad(source, log).run()
    with pytest.raises(Killed):
        BulkLoad(source.anew().killed(when, "rollback", 3), log).rollback()
    again = BulkLoad(source.anew(), log)
    assert again.state is BLOCKED

    again.restore()

    assert [batch[0] for batch in again.source.updated] == [3, 6, 9]
    assert (again.state, source.table) == (CLEANING, ALL)


def test_a_killed_rollback_goes_on(source: Numbers, log: Log) -> None:
    BulkLoad(source, log).run()
    with pytest.raises(Killed):
        BulkLoad(source.anew().killed("after", "rollback", 3), log).rollback()
    again = BulkLoad(source.anew(), log)

    again.rollback()

    assert [batch[0] for batch in again.source.rolled_back] == [3, 0]
    assert (again.state, source.table) == (CANCELLED, set())
    log.open()
    assert log.marks.count(REMOVED) == 4
    log.close()


def test_a_killed_clean_goes_on_and_nothing_else_does(
    source: Numbers, log: Log, new_log: Callable[[], Log]
) -> None:
    load = BulkLoad(source, log)
    load.run()

    def die() -> None:
        raise Killed

    log.clear = die  # type: ignore[method-assign]  # the process is gone
    with pytest.raises(Killed):
        load.clean()
    again = BulkLoad(source.anew(), new_log())

    assert again.status() == Progress(state=CLEANING)
    with pytest.raises(InvalidState, match=r"part of its logs gone; call clean\(\)"):
        again.rollback()
    again.run()
    assert again.state is FINISHED
    assert source.table == ALL
    assert again.source.updated == []
    assert BulkLoad(source, new_log()).state is STARTING


def test_rollback_of_a_load_that_has_not_begun_is_remembered(source: Numbers, log: Log) -> None:
    BulkLoad(source, log).rollback()

    assert BulkLoad(source, log).state is CANCELLED
    with pytest.raises(InvalidState, match=r"clean\(\)"):
        BulkLoad(source, log).run()


def test_the_source_gets_its_own_description_back(source: Numbers, log: Log) -> None:
    with pytest.raises(Killed):
        BulkLoad(source.killed("before", "update", 3), log).run()
    again = source.anew()

    BulkLoad(again, log).run()

    assert again.resumed == source.metadata()
