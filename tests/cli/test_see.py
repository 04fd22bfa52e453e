"""``status``, ``top``, ``doctor``, and ``sql``, which prints claims without a database."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from rich.console import Console
from rich.text import Text
from sqlalchemy import URL, Engine, insert, text
from sqlalchemy.orm import Session

from sa_jobqueue import Owner

# Inner: `top` itself draws until a signal.
from sa_jobqueue.cli.see import picture
from sa_jobqueue.control import pause, register_worker
from sa_jobqueue.counts import overview
from tests.support import make_engine, with_empty_tables

from . import reels
from .conftest import Run, Shell, Start, add, plain
from .depot import TABLES, Crate, Shelf

DEPOT, CRATES = "tests.cli.depot", "tests.cli.depot:crates"
MESSAGES = "tests.cli.shop:Message"


@pytest.fixture
def jobs(engine: Engine, tables: None) -> None:
    """Two due crates, one failed crate, and a pause."""
    add(engine, Crate(), Crate(kind="barrel"), Crate(status="failed"))
    with Session(engine) as session, session.begin():
        pause(session, Crate)


@pytest.mark.usefixtures("jobs")
def test_status_of_a_module_shows_each_of_its_queues(shell: Shell) -> None:
    lines = shell("status", DEPOT).stdout.splitlines()

    words = [line.split() for line in lines]
    assert words[0][:4] == ["queue", "due", "oldest", "next"]
    assert [line[:2] for line in words[1:4]] == [
        ["crates", "2"],
        ["barrels", "1"],
        ["shelves", "0"],
    ]
    assert lines[1].endswith("0 paused ")
    assert "not indexed" in lines[3]


@pytest.mark.usefixtures("jobs")
def test_status_of_a_queue_counts_its_own_jobs_by_status_and_says_that_it_is_paused(
    shell: Shell,
) -> None:
    crates, barrels, shelves = (
        plain(shell("status", f"{DEPOT}:{name}").stdout)
        for name in ("crates", "barrels", "shelves")
    )

    assert ("unclaimed 2" in crates, "failed 1" in crates) == (True, True)
    assert ("unclaimed 1" in barrels, "failed 0" in barrels) == (True, True)
    assert ("crates is paused since" in crates, "paused" in shelves) == (True, False)


@pytest.mark.usefixtures("jobs")
def test_status_as_json_has_numbers_ages_and_workers(shell: Shell) -> None:
    with Owner(shell.engine, "packer") as owner:
        with shell.session() as session:
            register_worker(session, owner.name, [Crate], tables=TABLES)
        shown = shell("status", CRATES, "tests.cli.depot:shelves", "--json").stdout

    crates, shelves = json.loads(shown)
    assert (crates["target"], crates["queue"]) == (CRATES, "crate")
    assert crates["due"] == {"number": 2, "more": False}
    assert crates["failed"] == {"number": 1, "more": False}
    assert crates["oldest_seconds"] >= 0
    assert crates["workers"]["alive"] == 1
    assert crates["paused"].endswith("+00:00")
    assert (shelves["failed"], shelves["finished_per_second"]) == (None, None)


@pytest.mark.usefixtures("jobs")
def test_status_fits_into_80_columns_with_all_numbers_whole(shell: Shell) -> None:
    now = datetime.now(UTC)
    kinds = [
        {"status": "unclaimed", "run_at": now - timedelta(days=412, hours=23, minutes=30)},
        {"status": "claimed", "owner": "w", "owner_date": now},
        {"status": "failed", "owner_date": now},
    ]
    with shell.session() as session:
        for values in kinds:
            session.execute(insert(Crate), [values] * 10_001)
        session.add(Crate(run_at=now + timedelta(hours=23, minutes=59)))
        with Owner(shell.engine, "packer") as owner:
            name = owner.name
        register_worker(session, name, [Crate], tables=TABLES)

    shown = shell("status", "tests.cli.depot:a_queue_with_quite_a_long_name", DEPOT)

    line = shown.stdout.splitlines()[1]
    assert len(line) <= 80
    assert line.count("10,000+") == 3
    for whole in ("412d 23h", "23h 5", "1 dead paused"):
        assert whole in line
    assert line.startswith("a_queue")


@pytest.mark.parametrize("full", [False, True])
def test_lists_fit_into_80_columns_with_whole_keys_unless_all_is_asked_for(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    error, key = "no room " * 30, "a hall with a long name,70"
    values = {"status": "failed", "owner_date": datetime.now(UTC)}
    with shell.session() as session:
        session.add(Crate(last_error=error, kind="a crate of a kind", **values))
        session.add(Shelf(hall="a hall with a long name", number=70, **values))
        with Owner(shell.engine, "packer") as owner:
            worker = owner.name
        register_worker(session, worker, [Crate, Shelf], tables=TABLES)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    options = ["--full"] if full else []

    failed, workers = (
        [Text.from_ansi(line).plain for line in shell(name, DEPOT, *options).stdout.splitlines()]
        for name in ("failed", "workers")
    )

    assert max(map(len, failed + workers)) <= 80
    assert [key in line for line in failed].count(True) == 1
    assert [worker in line for line in workers].count(True) == 1
    assert (len(workers) == 2, len(failed) == 3) == (not full, not full)
    assert ("…" in "".join(failed)) is not full


@pytest.mark.usefixtures("jobs")
def test_what_another_program_reads_is_a_line_for_each_job_and_never_cut(shell: Shell) -> None:
    shell.add(Crate(status="failed", owner_date=datetime.now(UTC), last_error="no room " * 30))

    lines = shell("failed", CRATES).stdout.splitlines()

    assert len(lines) == 2
    assert "no room " * 20 in lines[1]


@pytest.mark.usefixtures("jobs")
def test_top_shows_the_queues_with_trouble_first(shell: Shell) -> None:
    with shell.session() as session:
        seen = {"shelves": overview(session, [Shelf])[0], "crates": overview(session, [Crate])[0]}
    console = Console(width=80)

    with console.capture() as captured:
        console.print(picture(seen, "here"))

    lines = captured.get().splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["crates", "shelves"]


def test_the_doctor_names_what_is_well_in_one_line_and_hangs_what_is_not(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shell.engine.begin() as connection:
        connection.exec_driver_sql(DROP)
    full = shell("doctor", MESSAGES, "--full").stdout.splitlines()
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")

    shown = shell("doctor", MESSAGES).stdout.splitlines()

    lines = [Text.from_ansi(line).plain for line in shown]
    (begin,) = (place for place, line in enumerate(lines) if line.startswith("error"))
    assert lines[begin + 1].startswith(" " * 18)
    assert len(lines[begin]) <= 60
    assert [line.startswith("ok ") for line in lines].count(True) == 1
    assert [line.startswith("ok ") for line in full].count(True) > 1


@pytest.mark.usefixtures("jobs")
def test_top_draws_tables_until_a_signal_and_asks_again_if_the_database_goes_away(
    start: Start, url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    top = start("top", DEPOT, "--url", url, "--every", 0.1)

    def wait_for(said: str) -> str:
        return next(line for line in top.stdout or () if said in line)

    wait_for("crates")
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE crate RENAME TO elsewhere"))
    assert "no such table: crate" in wait_for("not read, tried again")
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO crate"))
    wait_for("crates")
    top.send_signal(signal.SIGTERM)

    assert top.wait(20) == 0


@pytest.mark.parametrize("command", ["status", "top"])
def test_what_waits_for_a_signal_is_counted_where_an_index_finds_it(
    start: Start, db_url: URL, db_alias: str, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    engine = make_engine(db_url)
    with_empty_tables(engine, reels.Base.metadata)
    add(engine, *(reels.Reel(status=it) for it in ("lent", "lent", "lost", "done")))
    engine.dispose()
    monkeypatch.setenv("FORCE_COLOR", "1")  # `top` draws in a terminal alone
    url = db_url.render_as_string(hide_password=False)

    shown = start(command, "tests.cli.reels:workflow", "--url", url)

    lost = "not indexed" if db_alias == "postgresql" else "1"
    for said in ("'lent' of Reel: 2, until a signal", f"'lost' of Reel: {lost}, until a signal"):
        assert any(said in line for line in shown.stdout or ())


def test_top_asks_a_server_again_that_is_away_from_its_start(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    top = start("top", DEPOT, "--url", "postgresql+asyncpg://127.0.0.1:1/x", "--every", 0.1)

    said = [line for line in islice(top.stdout or (), 20) if "not read, tried again" in line]
    top.send_signal(signal.SIGTERM)

    assert len(said) > 1
    assert top.wait(20) == 0


#: Drop the index, or make one that has the finished jobs, too.
DROP = "DROP INDEX ix_message_claim"
OTHER = "CREATE INDEX ix_all ON message (status, run_at, id)"


@pytest.mark.parametrize(
    ("statements", "code", "last", "said"),
    [
        ((), 0, "all is well", "Message: <JobQueue Message, strategy='auto'> on SQLite 3."),
        ((DROP,), 1, "1 error, 0 warnings", "error   index     no index serves the claim"),
        ((DROP,), 1, "1 error, 0 warnings", "fix: CREATE INDEX ix_message_claim ON message (stat"),
        ((DROP, OTHER), 3, "0 errors, 1 warning", "warning index     ix_all (status, run_at, id)"),
        (("DROP TABLE message",), 1, "1 error, 0 warnings", "there is no table message"),
    ],
)
def test_the_exit_code_tells_errors_from_warnings_and_each_finding_is_printed(
    shell: Shell, statements: tuple[str, ...], code: int, last: str, said: str
) -> None:
    with shell.engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)

    result = shell("doctor", MESSAGES)

    assert result.exit_code == code, result.output
    assert said in result.stdout
    assert result.stdout.splitlines()[-1] == last


def test_several_queues_are_examined_and_the_worst_is_the_exit_code(shell: Shell) -> None:
    with shell.engine.begin() as connection:
        connection.exec_driver_sql("DROP INDEX ix_order_claim")

    result = shell("doctor", "tests.cli.shop:Order", MESSAGES)

    assert result.exit_code == 1
    assert "all is well" in result.stdout
    assert "error   index     no index serves the claim" in result.stdout


@pytest.mark.parametrize(
    ("target", "dialect", "said"),
    [
        ("tests.cli.shop:Message", "postgresql", "FOR NO KEY UPDATE OF message SKIP LOCKED"),
        ("tests.cli.shop:Message", "mysql", "FOR UPDATE OF message SKIP LOCKED"),
        ("tests.cli.shop:Message", "mysql", "message.id IN (:sa_jobqueue_keys)"),
        ("tests.cli.shop:Message", "mariadb", "FOR UPDATE SKIP LOCKED"),
        ("tests.cli.shop:to_a", "sqlite", "-- :recipient_1 = 'a%'"),
        ("tests.cli.films:show", "sqlite", "status = 'cut'"),
        ("tests.cli.films", "sqlite", "SET status='claimed'"),
    ],
)
def test_the_claim_is_printed(run: Run, target: str, dialect: str, said: str) -> None:
    result = run("sql", target, "--dialect", dialect)

    assert result.exit_code == 0, result.output
    assert said in result.output


def test_sqlite_needs_one_statement_for_a_claim(run: Run) -> None:
    assert run("sql", "tests.cli.shop:to_a", "--dialect", "sqlite").output.count(";") == 1
