"""A log in a file that is cut, damaged, or opened twice."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from sa_jobqueue import UnsupportedDatabase
from sa_jobqueue.bulk import BrokenLog, BulkLoad, FileLog
from sa_jobqueue.bulk import log as module  # what is synced when, and a platform without flock

from .fakes import Killed, Numbers

pytestmark = pytest.mark.only_on("sqlite")  # the source has no database

TABLE = set(range(9))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The log of a load of four batches that was killed after the third."""
    with pytest.raises(Killed):
        BulkLoad(Numbers(12, 3).killed("before", "update", 9), FileLog(tmp_path / "log")).run()
    return tmp_path / "log"


def load_of(folder: Path) -> BulkLoad[Numbers]:
    return BulkLoad(Numbers(12, 3, set(TABLE)), FileLog(folder))


def test_a_log_cut_at_any_byte_is_read_to_its_last_whole_line(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "load.jsonl").read_bytes()
    copy = shutil.copytree(folder, tmp_path / "cut")
    for cut in range(len(whole)):
        (copy / "load.jsonl").write_bytes(whole[:cut])
        kept = whole[: whole.rfind(b"\n", 0, cut) + 1].decode()

        status = load_of(copy).status()

        assert status.state == ("BLOCKED" if kept else "STARTING")
        assert (status.divided, status.inserted) == (kept.count('"redo"'), kept.count("inserted"))


@pytest.mark.parametrize(
    "torn", [b'{"crc":"', b'{"crc":"00000000","entry":{}', bytes(100) + b"\n", b'{"crc":"0\0\n']
)
@pytest.mark.parametrize("verb", ["run", "rollback"])
def test_a_load_goes_on_behind_a_torn_line(folder: Path, torn: bytes, verb: str) -> None:
    with (folder / "load.jsonl").open("ab") as file:
        file.write(torn)
    load = load_of(folder)

    getattr(load, verb)()

    assert load.source.table == (set(range(12)) if verb == "run" else set())
    load.status()  # every line is whole again


@pytest.mark.parametrize("number", [1, 2, 12])
@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.replace(b'"entry":{"', b'"entry":{"1', 1),  # still JSON
        lambda line: bytes(len(line) - 1) + b"\n",
    ],
)
def test_a_damaged_line_is_refused_with_its_number(folder: Path, number: int, change: Any) -> None:
    path = folder / "load.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines.append(lines[0])
    lines[number - 1] = change(lines[number - 1])
    path.write_bytes(b"".join(lines))

    with pytest.raises(BrokenLog, match=rf"load\.jsonl, line {number}: damaged"):
        load_of(folder).run()


def test_what_must_survive_a_power_cut_is_synced_before_it_is_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, done = tmp_path / "log" / "load.jsonl", list[str]()

    def see_sync(number: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(number).st_mode)
        entry = {} if is_folder else json.loads(path.read_bytes().splitlines()[-1])["entry"]
        load = entry.get("load", {}).get("state")
        done.append("folder" if is_folder else load or entry.get("mark") or next(iter(entry)))

    monkeypatch.setattr(os, "fsync", see_sync)
    monkeypatch.setattr(module, "_sync_data", see_sync)
    source = Numbers(6, 3)
    source.after = lambda verb, batch: done.append(verb)
    load = BulkLoad(source, FileLog(tmp_path / "log"))

    load.run()
    load.clean()

    batch = ["redo", "inserting", "update"]
    assert done == ["folder", "INSERTING", *batch, *batch, "redo_ended", "CLEANING", "folder"]


def test_a_caller_waits_briefly_for_a_reader(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = FileLog(folder)
    reader.open()
    monkeypatch.setattr(time, "sleep", lambda seconds: reader.close())

    load_of(folder).run()


def test_a_platform_without_flock_is_refused_with_the_way_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "fcntl", None)

    with pytest.raises(UnsupportedDatabase, match="use DatabaseLog"):
        load_of(folder).run()
