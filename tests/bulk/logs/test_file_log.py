"""A log in files that are cut, damaged, mixed up, or opened twice."""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sa_jobqueue import LockTimeout
from sa_jobqueue.bulk import BrokenLog, BulkLoad, FileLog, Head
from sa_jobqueue.bulk.log import INSERTED, MARKS
from sa_jobqueue.bulk.logs.json_lines import Appender, entry_of, line_of, replace_file, whole_lines
from sa_jobqueue.bulk.states import BLOCKED, CLEANING, FINISHED, STARTING
from tests.bulk.fakes import Killed, Numbers

FILES = ["state.json", "redo.jsonl", "undo.jsonl"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The log of a load of four batches that was killed after the third."""
    source = Numbers(12, 3).killed("before", "update", 9)
    source.threads = False  # one thread writes in one order
    with pytest.raises(Killed):
        BulkLoad(source, FileLog(tmp_path / "log")).run()
    return tmp_path / "log"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record what is synced, replaced and removed, in this order."""
    done: list[str] = []
    replace, unlink = Path.replace, Path.unlink

    def see_sync(number: int) -> None:
        found = os.fstat(number)
        done.append("folder" if stat.S_ISDIR(found.st_mode) else f"{found.st_size} bytes")

    def see_replace(path: Path, target: Path) -> Path:
        done.append(f"{target.name} replaced")
        return replace(path, target)

    def see_unlink(path: Path, missing_ok: bool = False) -> None:
        done.extend([f"{path.name} removed"] if path.exists() else [])
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(os, "fsync", see_sync)
    monkeypatch.setattr("sa_jobqueue.bulk.logs.json_lines._sync_data", see_sync)
    monkeypatch.setattr(Path, "replace", see_replace)
    monkeypatch.setattr(Path, "unlink", see_unlink)
    return done


def entries(path: Path) -> list[Any]:
    return [entry_of(line) for _, line in whole_lines(path)]


def read(folder: Path) -> tuple[list[Any], list[str]]:
    """Read a log: the batches of redo, and the marks of undo."""
    log = FileLog(folder)
    log.open()
    try:
        batches = [batch for _, batch in log.redo(lambda number: True)]
        return batches, [MARKS[log.marks[number]] for number in range(len(batches))]
    finally:
        log.close()


def test_the_files_are_json_lines(folder: Path) -> None:
    for name in ("redo.jsonl", "undo.jsonl"):
        for line in (folder / name).read_text().splitlines():
            assert set(json.loads(line)) == {"crc", "entry"}
    assert json.loads((folder / "state.json").read_text())["state"] == "INSERTING"


@pytest.mark.parametrize("name", ["redo.jsonl", "undo.jsonl"])
def test_a_log_cut_at_any_byte_of_its_last_two_lines_is_read_or_refused(
    folder: Path, name: str, tmp_path: Path
) -> None:
    whole = (folder / name).read_bytes()
    lines = whole.splitlines(keepends=True)
    told = {"redo.jsonl": 0, "undo.jsonl": 0}
    for cut in range(len(whole) - len(lines[-1]) - len(lines[-2]), len(whole)):
        copy = tmp_path / f"cut {cut}"
        shutil.copytree(folder, copy)
        os.truncate(copy / name, cut)
        kept = [entry_of(line) for line in lines if whole.index(line) + len(line) <= cut]
        marked = {entry["batch"] for entry in kept[1:] if "mark" in entry}

        if name == "redo.jsonl" and len(kept) - 1 < 4:
            with pytest.raises(BrokenLog, match=r"redo\.jsonl has \d batches"):
                read(copy)  # batch 3 is marked
        else:
            batches, marks = read(copy)
            assert len(batches) == 4
            if name == "undo.jsonl":
                last = {entry["batch"]: entry["mark"] for entry in kept[1:]}
                assert marks == [last.get(number, "nothing") for number in range(4)]
                assert set(last) == marked
        told[name] += 1
        shutil.rmtree(copy)

    assert told[name] > 60


@pytest.mark.parametrize("name", ["redo.jsonl", "undo.jsonl"])
def test_a_load_goes_on_behind_a_torn_line(folder: Path, name: str) -> None:
    with (folder / name).open("ab") as file:
        file.write(line_of({"batch": 4, "is": list(range(1_000))})[:-5])
    source = Numbers(12, 3, set(range(9)))

    BulkLoad(source, FileLog(folder)).run()

    assert source.table == set(range(12))
    assert [entry["batch"] for entry in entries(folder / "redo.jsonl")[1:-1]] == [0, 1, 2, 3]
    assert (folder / name).read_bytes().endswith(b"}}\n")


@pytest.mark.parametrize(
    "torn", [bytes(100) + b"\n", line_of({"batch": 3, "mark": "inserted"})[:-1] + b"\0"]
)
def test_zeros_at_the_end_are_a_torn_line_too(folder: Path, torn: bytes) -> None:
    before = read(folder)
    with (folder / "undo.jsonl").open("ab") as file:
        file.write(torn)

    assert read(folder) == before


def test_zeros_before_a_whole_line_are_damage(folder: Path) -> None:
    lines = (folder / "undo.jsonl").read_bytes().splitlines(keepends=True)
    lines[2] = bytes(len(lines[2]) - 1) + b"\n"
    (folder / "undo.jsonl").write_bytes(b"".join(lines))

    with pytest.raises(BrokenLog, match=r"undo\.jsonl, line 3: damaged"):
        read(folder)


@pytest.mark.parametrize("name", ["redo.jsonl", "undo.jsonl"])
@pytest.mark.parametrize("number", [2, 3, -1])
def test_a_damaged_line_is_refused_with_its_number(folder: Path, name: str, number: int) -> None:
    lines = (folder / name).read_bytes().splitlines(keepends=True)
    place = number - 1 if number > 0 else len(lines) - 1
    lines[place] = lines[place].replace(b'"batch":', b'"batch":1', 1)  # still JSON
    (folder / name).write_bytes(b"".join(lines))

    with pytest.raises(BrokenLog, match=rf"{name}, line {place + 1}: damaged"):
        read(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()

    with pytest.raises(BrokenLog, match=rf"{name} is missing"):
        BulkLoad(Numbers(12, 3), FileLog(folder)).run()


@pytest.mark.parametrize("name", ["redo.jsonl", "undo.jsonl"])
def test_a_file_of_another_load_is_named(folder: Path, name: str, tmp_path: Path) -> None:
    BulkLoad(Numbers(12, 3), FileLog(tmp_path / "other")).run()
    shutil.copy(tmp_path / "other" / name, folder / name)

    with pytest.raises(BrokenLog, match=rf"{name} is not of the load"):
        read(folder)


def test_a_file_that_is_no_part_of_a_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("my work")

    with pytest.raises(BrokenLog, match=r"thesis\.txt is no part of a log"):
        BulkLoad(Numbers(12, 3), FileLog(tmp_path)).run()

    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"state\.json is not the state of a bulk load"),
        ("[1]", r"state\.json is not the state of a bulk load"),
        (
            '{"log": "sa_jobqueue bulk load", "version": 1, "id": "a", "state": "DONE"}',
            r"state\.json is not the state of a bulk load",
        ),
        ('{"log": "another", "version": 1}', r"state\.json is not the state of a bulk load"),
        ('{"log": "sa_jobqueue bulk load", "version": 2}', r"has the format 2; this release reads"),
    ],
)
def test_a_state_of_another_kind_or_format_is_refused(
    folder: Path, content: str, message: str
) -> None:
    (folder / "state.json").write_text(content)

    with pytest.raises(BrokenLog, match=message):
        FileLog(folder).open()


@pytest.mark.parametrize("files", [0, 1, 2])
def test_a_load_that_is_killed_while_its_files_are_made_has_not_begun(
    files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, left = Path.replace, [files]

    def die(path: Path, target: Path) -> Path:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return replace(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", die)
        with pytest.raises(Killed):
            BulkLoad(Numbers(12, 3), FileLog(tmp_path)).run()
    load = BulkLoad(Numbers(12, 3), FileLog(tmp_path))
    assert load.state is STARTING

    load.run()

    assert load.source.table == set(range(12))


def test_a_log_has_one_writer_at_a_time_and_any_readers(folder: Path) -> None:
    first, second = FileLog(folder), FileLog(folder)
    first.open()

    with pytest.raises(LockTimeout, match="Another manager works with the log in"):
        second.open()
    head, busy = second.peek()

    assert head is not None
    assert (head.state, busy) == ("INSERTING", True)
    first.close()
    assert second.peek()[1] is False
    assert BulkLoad(Numbers(12, 3), second).state is BLOCKED


def test_a_reader_keeps_no_manager_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looking, beginning = FileLog(folder), FileLog(folder)
    read = looking._read

    def read_later() -> Head | None:
        beginning.open()
        return read()

    monkeypatch.setattr(looking, "_read", read_later)

    assert looking.peek()[1] is True
    beginning.close()


def test_a_manager_waits_briefly_for_a_reader(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, beginning = FileLog(folder), FileLog(folder)
    looking.open()
    monkeypatch.setattr(
        "sa_jobqueue.bulk.logs.folder_lock.time.sleep", lambda seconds: looking.close()
    )

    assert beginning.open() is not None
    beginning.close()


def test_a_reader_sees_no_mark_without_its_batch(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = FileLog(folder), FileLog(folder)
    writer.open()
    lines = reader._lines

    def read_and_let_write(name: str) -> Iterator[tuple[int, bytes]]:
        found = list(lines(name))
        if writer.redo_count == 4:
            writer.add_redo(4, [12])
            writer.before_commit(4, INSERTED, None)
        return iter(found)

    monkeypatch.setattr(reader, "_lines", read_and_let_write)

    assert reader.peek()[1]
    assert (reader.redo_count, MARKS[reader.marks[4]]) == (5, "nothing")
    writer.close()


def test_the_rows_that_a_source_keeps_of_a_batch_are_read_again(folder: Path) -> None:
    log = FileLog(folder)
    log.open()
    log.before_commit(3, INSERTED, None, kept=["a", {"b": 1}])
    log.after_commit(3, INSERTED)
    log.before_commit(1, INSERTED, None)
    log.close()

    log.open()

    assert [log.kept(number) for number in range(4)] == [None, None, None, ["a", {"b": 1}]]
    log.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty file."""
    (tmp_path / "lines").touch()
    return tmp_path / "lines"


def test_a_durable_write_is_synced_before_it_returns(path: Path, disk: list[str]) -> None:
    one = len(line_of({"a": 1}))
    appender = Appender(path, 0)
    disk.clear()

    appender.append({"a": 1}, durable=False)
    appender.append({"a": 2}, durable=True)
    appender.append({"a": 3}, durable=True)
    appender.append({"a": 4}, durable=False)
    appender.close()

    assert disk == [f"{count * one} bytes" for count in (2, 3, 4)]


def test_lines_written_during_a_sync_are_durable_with_the_next_sync(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = Appender(path, 0)
    synced: list[int] = []

    def write_meanwhile(number: int) -> None:
        synced.append(os.fstat(number).st_size)
        if len(synced) == 1:
            appender.append({"a": 2}, durable=False)

    monkeypatch.setattr("sa_jobqueue.bulk.logs.json_lines._sync_data", write_meanwhile)
    appender.append({"a": 1}, durable=True)
    appender.sync()
    appender.sync()

    one = len(line_of({"a": 1}))
    assert synced == [one, 2 * one]
    appender.close()


def test_lines_of_a_killed_process_are_synced_before_they_are_relied_on(
    path: Path, disk: list[str]
) -> None:
    path.write_bytes(b"whole\ntorn")

    Appender(path, 6).close()

    assert disk == ["6 bytes"]


def test_threads_write_one_line_after_the_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = Appender(path, 0)
    pwrite, others = os.pwrite, list[threading.Thread]()

    def write_slowly(number: int, data: bytes, place: int) -> int:
        if not others:
            others.append(threading.Thread(target=appender.append, args=({"a": 2},), kwargs=late))
            others[0].start()
            others[0].join(0.1)  # it waits; else it would be done by then
        return pwrite(number, data[:5], place)  # a write may be short

    late = {"durable": False}
    monkeypatch.setattr(os, "pwrite", write_slowly)
    appender.append({"a": 1}, durable=False)
    others[0].join()

    appender.close()
    assert entries(path) == [{"a": 1}, {"a": 2}]


def test_a_file_is_replaced_by_a_synced_file(path: Path, disk: list[str]) -> None:
    replace_file(path, b"12345")

    assert disk == ["5 bytes", "lines replaced", "folder"]


def test_marks_are_durable_before_the_state_that_relies_on_them(
    folder: Path, disk: list[str]
) -> None:
    log = FileLog(folder)
    head = log.open()
    assert head is not None
    log.after_commit(3, INSERTED)
    disk.clear()

    log.store(head)

    assert disk[0] == f"{(folder / 'undo.jsonl').stat().st_size} bytes"
    assert disk[2:] == ["state.json replaced", "folder"]
    log.close()


def test_the_state_is_removed_last_and_after_the_others_are_gone_durably(
    folder: Path, disk: list[str]
) -> None:
    (folder / "state.json.new").touch()
    log = FileLog(folder)
    log.open()
    disk.clear()

    log.clear()

    removed = [step for step in disk if step.endswith("removed")]
    assert removed[-1] == "state.json removed"
    assert len(removed) == 4
    assert [disk[disk.index(step) + 1] for step in removed] == ["folder"] * 4
    log.close()


def test_a_redo_entry_is_synced_before_its_batch_and_a_mark_before_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    append = Appender.append

    def see(appender: Appender, entry: dict[str, Any], *, durable: bool) -> int:
        what = entry.get("mark") or ("redo" if "batch" in entry else "end")
        seen.append(f"{what}{'!' if durable else ''}")
        return append(appender, entry, durable=durable)

    monkeypatch.setattr(Appender, "append", see)
    source = Numbers(6, 3)
    source.after = lambda verb, batch: seen.append(verb)
    source.threads = False

    BulkLoad(source, FileLog(tmp_path)).run()

    one = ["redo!", "inserting!", "update", "inserted"]
    assert seen == [*one, *one, "end!"]


def test_the_state_is_replaced_at_once(tmp_path: Path) -> None:
    log = FileLog(tmp_path)
    log.open()
    log.begin(Head(id="1", state=STARTING, metadata={}))
    inode = (tmp_path / "state.json").stat().st_ino

    log.store(Head(id="1", state=CLEANING, metadata={}))

    assert (tmp_path / "state.json").stat().st_ino != inode
    log.close()


def test_clean_leaves_an_empty_folder_which_is_a_new_load(folder: Path) -> None:
    load = BulkLoad(Numbers(12, 3), FileLog(folder))
    load.run()

    load.clean()

    assert list(folder.iterdir()) == []
    assert BulkLoad(Numbers(12, 3), FileLog(folder)).state is STARTING


@pytest.mark.parametrize("removed", range(3))
def test_clean_goes_on_whichever_file_was_removed_already(
    folder: Path, removed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = BulkLoad(Numbers(12, 3), FileLog(folder))
    load.run()
    unlink, left = Path.unlink, [removed]

    def die(path: Path, missing_ok: bool = False) -> None:
        if not left[0]:
            raise Killed
        left[0] -= path.exists()
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", die)
        with pytest.raises(Killed):
            load.clean()
    assert len(list(folder.iterdir())) == 3 - removed
    again = BulkLoad(Numbers(12, 3), FileLog(folder))

    assert again.state is CLEANING
    again.run()

    assert again.state is FINISHED
    assert list(folder.iterdir()) == []
