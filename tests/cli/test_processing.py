"""``setup-tables`` and ``start-processing``."""

from __future__ import annotations

import re
import signal

from sqlalchemy import Engine, func, inspect, select, text
from sqlalchemy.orm import Session

from sa_jobqueue.cli.demo.model import Record

from .conftest import Run, Start, finished
from .test_demo import read_until

SMALL = ("--producers", 1, "--consumers", 2, "--pause", 0.02)


def test_setup_tables_makes_an_empty_table_with_an_index(
    run: Run, url: str, engine: Engine
) -> None:
    result = run("setup-tables", "--url", url)

    assert result.exit_code == 0, result.output
    assert "table 'record' is ready in sqlite:///" in result.output
    indexes = [index["column_names"] for index in inspect(engine).get_indexes("record")]
    assert ["d"] in indexes


def test_setup_tables_empties_the_table(run: Run, url: str, engine: Engine) -> None:
    run("setup-tables", "--url", url)
    with Session(engine) as session, session.begin():
        session.add(Record(d="x", e=1))

    run("setup-tables", "--url", url)

    with Session(engine) as session:
        assert session.scalar(select(func.count(Record.id))) == 0


def test_a_table_of_the_users_own_is_never_dropped(run: Run, url: str, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE record (artist TEXT)"))

    result = run("setup-tables", "--url", url)

    assert result.exit_code == 1
    assert "is not the example's, and is not dropped" in result.output
    assert inspect(engine).get_columns("record")[0]["name"] == "artist"


def test_the_file_is_set_up_for_many_processes(run: Run, url: str, engine: Engine) -> None:
    run("setup-tables", "--url", url)

    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"


def test_processing_prints_batches_and_the_counter(start: Start, run: Run, url: str) -> None:
    run("setup-tables", "--url", url)

    code, output, errors = finished(start("start-processing", "--url", url, "--seconds", 2, *SMALL))

    assert code == 0, errors
    found = re.search(r"^consumer [12] #records = (\d+) - \[(.*)\]$", output, re.M)
    assert found
    assert len(found[2].split(", ")) == int(found[1])
    assert re.search(r"^counter = \d+0$", output, re.M)


def test_processing_deletes_what_is_finished(
    start: Start, run: Run, url: str, engine: Engine
) -> None:
    run("setup-tables", "--url", url)

    finished(start("start-processing", "--url", url, "--seconds", 1, *SMALL))

    with Session(engine) as session:
        assert set(session.scalars(select(Record.status))) <= {"unclaimed"}


def test_processing_keeps_what_is_finished(
    start: Start, run: Run, url: str, engine: Engine
) -> None:
    run("setup-tables", "--url", url)

    finished(start("start-processing", "--url", url, "--seconds", 2, "--keep", *SMALL))

    with Session(engine) as session:
        assert "done" in set(session.scalars(select(Record.status)))


def test_processing_ends_at_ctrl_c_and_leaves_nothing_claimed(
    start: Start, run: Run, url: str, engine: Engine
) -> None:
    run("setup-tables", "--url", url)
    processing = start("start-processing", "--url", url, *SMALL)
    read_until(processing, "#records")

    processing.send_signal(signal.SIGINT)

    code, output, errors = finished(processing)
    assert code == 0, errors
    assert output.splitlines()[-1].startswith("counter = ")
    with Session(engine) as session:
        assert "claimed" not in set(session.scalars(select(Record.status)))


def test_a_database_error_is_one_line(start: Start, run: Run, url: str, engine: Engine) -> None:
    run("setup-tables", "--url", url)
    processing = start("start-processing", "--url", url, *SMALL)
    read_until(processing, "#records")

    with engine.begin() as connection:
        connection.execute(text("DROP TABLE record"))

    code, _, errors = finished(processing)
    assert code == 1
    assert re.fullmatch(r"Error: (consumer|producer) \d: no such table: record\n", errors)
