"""The code of pages runs from top to bottom, and does what the pages say.

Each table that a page or a docstring shows can be created on all four databases.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Engine, Table, func, insert, inspect, orm, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateTable

import sa_jobqueue
from sa_jobqueue import claim, complete, enqueue, fail, release
from sa_jobqueue.bulk import FileLog, LoadState
from sa_jobqueue.migration import patiently
from sa_jobqueue.otel import TraceMixin
from tests.migration.support import migrating
from tests.models import Email, Task, add_tasks
from tests.support import SERVERS

from .markdown import ROOT, code_blocks, page, run, table


def code_of(name: str) -> list[str]:
    return code_blocks(page(f"docs/{name}.md"), "python")


def made(code: str, given: dict[str, Any], *rows: dict[str, Any], entity: str = "") -> Any:
    """Run the models of a page, create their tables, and insert rows; return all names."""
    names = run(code, **given)
    names["Base"].metadata.create_all(given["engine"])
    with Session(given["engine"]) as session:
        session.add_all([names[entity](**row) for row in rows])
        session.commit()
    return names


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("index", ["to anna@example.org"]),
        (
            "claiming",
            [
                *(f"to {name}@example.org" for name in ("anna", "bert", "carla", "dora")),
                *(f"to {name}@example.org" for name in ("emil", "fritz", "gerda")),
                "0 claims were reaped",
            ],
        ),
        # Bert's email is not due yet.
        ("coming-from", [f"to {name}@example.org" for name in ("anna", "carla", "dora")]),
    ],
)
def test_a_page_that_needs_nothing_prints_what_it_says(
    name: str, printed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run("\n".join(code_of(name)))

    assert capsys.readouterr().out.splitlines() == printed


def test_positions_shows_a_job_its_place_and_its_time(
    taken_for_granted: dict[str, Any], engine: Engine
) -> None:
    rows: list[dict[str, Any]] = [{}] * 33
    names = made("\n".join(code_of("positions")), taken_for_granted, *rows, entity="Render")
    shown = names["shown"]
    with Session(engine) as session:
        claimed = claim(session, names["Render"], owner="w", limit=31)
        waiting = session.scalars(select(names["Render"]).filter_by(status="unclaimed")).all()
        first, second = sorted(waiting, key=lambda job: int(job.id))
        assert [shown(session, job) for job in (first, second)] == ["1 in line", "2 in line"]

        complete(session, claimed[:30])
        session.commit()

        assert shown(session, second) == "2 in line, about 0:00:20"
        assert shown(session, claimed[30]) == "claimed"
        assert names["hurry"](session, [claimed[30], second, first]) == (
            "2 of 3 hurried; places now: [None, 2, 1]"
        )


def test_serial_claims_one_job_of_each_key(
    taken_for_granted: dict[str, Any], engine: Engine
) -> None:
    model, claims = code_of("serial")
    names = made(model, taken_for_granted)

    with Session(engine, expire_on_commit=False) as session:
        run(claims, **{**names, "session": session})


THREE: list[dict[str, Any]] = [{"id": number} for number in (1, 2, 3)]


def test_rounds_mail_everybody_once_in_each_round(
    taken_for_granted: dict[str, Any], engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    model, mail, at_once, chunks, readers, mail_readers, upgrade = code_of("rounds")
    sent: Counter[Any] = Counter()
    taken_for_granted["send"] = lambda somebody, mailing: sent.update([(somebody.id, mailing)])
    names = made(model, taken_for_granted, *THREE, entity="Subscriber")

    for code in (mail, at_once, chunks, mail):
        names = run(code, **names)

    printed = capsys.readouterr().out.splitlines()
    assert printed == ["3 are done in round 1", "3 are done in round 4"]
    assert sent == Counter({(id_, round_): 1 for id_ in (1, 2, 3) for round_ in (1, 4)})

    if engine.dialect.name == "postgresql":  # the round mixin alone
        sent.clear()
        run(mail_readers, **made(readers, taken_for_granted, *THREE, entity="Reader"))
        assert sent == Counter({(id_, 1): 1 for id_ in (1, 2, 3)})

    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE customer (id INTEGER PRIMARY KEY)"))
    with migrating(engine) as op:
        run(f"{upgrade}\nupgrade()", **{**taken_for_granted, "op": op})
    assert inspect(engine).has_table("customer_rounds")


LOG = """
class ClipLog(Base):
    __tablename__ = "clip_log"
    id: Mapped[int] = mapped_column(primary_key=True)
    clip_id: Mapped[int]
    before: Mapped[str]
    after: Mapped[str]
"""


def test_workflows_publishes_a_clip_and_draws_its_diagram(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, begin, signal, note = code_of("workflows")

    names = run("\n".join([model, LOG, note, begin, signal]))
    names["hear"](1)

    with names["Session"](names["engine"]) as session:
        clips = session.query(names["Clip"]).order_by(names["Clip"].id)
        assert [clip.status for clip in clips] == ["published", "rejected"]
        assert session.query(names["ClipLog"]).count() == 9
    assert capsys.readouterr().out.endswith("clip 1 is published\n")
    (drawn,) = code_blocks(page("docs/workflows.md"), "mermaid")
    assert drawn == names["workflow"].diagram() + "\n"


def test_retries_delays_a_job_and_brings_a_dead_one_back(
    taken_for_granted: dict[str, Any], engine: Engine
) -> None:
    def send(task: Task) -> None:
        raise OSError("no route")

    queue, service, many, dead = code_of("retries")
    Task.metadata.create_all(engine)
    with Session(engine, expire_on_commit=False) as session:
        (task,) = add_tasks(session, "bert")
        names = {**taken_for_granted, "session": session, "Email": Task, "send": send}

        names = run(f"{queue}\n{service}", **names)

        assert (task.status, task.attempts) == ("unclaimed", 1)
        sa_jobqueue.retry(session, sa_jobqueue.cancel(session, task))
        task.max_attempts = 1
        session.commit()
        fail(session, claim(session, Task, owner="w"), error="no")
        assert run(dead, **names)["again"] == [task]
        run(many.replace("recipient", "name"), **names)


def test_bulk_loads_the_rows_of_a_list_and_of_a_table(
    taken_for_granted: dict[str, Any], engine: Engine, tmp_path: Path
) -> None:
    loading, _, in_tables, _ = code_of("bulk")
    names = {**taken_for_granted, "folder": tmp_path / "log", "Email": Email}
    Email.__table__.create(engine)  # type: ignore[attr-defined]  # it is a Table

    for code, rows in ((loading, 0), (in_tables, 1_000)):
        names = run(code, **names)
        with Session(engine) as session:
            assert session.scalar(select(func.count()).select_from(Email)) == rows


def test_bulk_loads_resumes_and_rolls_back_a_source_of_ones_own(tmp_path: Path) -> None:
    stored: set[str] = set()
    limit, storing = [3], threading.Lock()

    def upload(name: str) -> None:
        with storing:
            if len(stored | {name}) > limit[0]:
                raise OSError("no space")
            stored.add(name)

    given = {"folder": tmp_path / "log", "upload": upload, "remove": stored.discard}

    with pytest.raises(OSError, match="no space"):
        run(code_of("bulk")[-1], names=[*"abcde"], **given)
    names = vars(sys.modules["page"])
    load = names["BulkLoad"](names["Uploads"](names["names"]), FileLog(names["folder"]))
    assert (load.state, len(stored)) == (LoadState.BLOCKED, 3)
    limit[0] = 5
    load.run()

    assert (load.state, stored) == (LoadState.CLEANING, {*"abcde"})
    load.rollback()
    assert (load.state, stored) == (LoadState.CANCELLED, set())


def execute_line(engine: Engine, when: str) -> None:
    """Run the statements of a line of the page as it says."""
    lines = {line["partitions"]: line for line in table(page("docs/partitions.md"), "partitions")}
    database = "PostgreSQL" if engine.dialect.name == "postgresql" else "MySQL, MariaDB"
    for code in re.findall("`([^`]+)`", lines[when][database]):
        if " " in code:
            with migrating(engine) as op:
                patiently(op, lambda: op.execute(code))  # noqa: B023 - called at once


@pytest.mark.only_on(*SERVERS)
def test_partitions_makes_adds_and_drops_days(
    taken_for_granted: dict[str, Any], engine: Engine
) -> None:
    report = made(code_of("partitions")[0], taken_for_granted)["Report"]
    days = [{"day": date(2030, 1, day)} for day in (1, 2, 3)]

    execute_line(engine, "the first days")
    with engine.begin() as connection:
        connection.execute(insert(report), days[:2])
    execute_line(engine, "add a day")
    with engine.begin() as connection:
        connection.execute(insert(report), days[2:])

    with Session(engine, expire_on_commit=False) as session:
        complete(session, claim(session, report, owner="w", limit=2))
        session.commit()
        execute_line(engine, "drop a day")
        assert [job.day.day for job in claim(session, report, owner="w", limit=9)] == [3]
        assert session.scalar(select(func.count()).select_from(report)) == 2


# One job for each key

FOREVER, FOREVER_USE, UNFINISHED, PARTIAL, BACK, FRESH = code_of("unique")


def add(session: Session, entity: Any, *documents: int) -> None:
    rows = [{"document_id": document} for document in documents]
    enqueue(session, entity, rows, skip_duplicates=True)
    session.commit()


def documents(session: Session, entity: Any) -> list[tuple[int, str]]:
    session.expire_all()
    found = session.scalars(select(entity).order_by(entity.id))
    return [(job.document_id, job.status) for job in found]


def test_unique_inserts_one_job_for_each_key(
    taken_for_granted: dict[str, Any], engine: Engine
) -> None:
    with Session(engine) as session:
        names = made(FOREVER, {**taken_for_granted, "session": session})
        exec(FOREVER_USE, names)

        users = session.scalars(select(names["Welcome"].user_id)).all()
    assert sorted(users) == [1, 2, 3]


@pytest.mark.parametrize("block", [UNFINISHED, PARTIAL, FRESH], ids=["column", "index", "fresh"])
def test_unique_has_one_unfinished_job_for_each_key_or_one_beside_a_job_that_runs(
    taken_for_granted: dict[str, Any], engine: Engine, block: str, db_alias: str
) -> None:
    if block == PARTIAL and db_alias in ("mysql", "mariadb"):
        pytest.skip("no partial indexes")
    entity = made(block, taken_for_granted)["Base"].__subclasses__()[-1]
    beside = [(1, "unclaimed")] * (block == FRESH)
    with Session(engine, expire_on_commit=False) as session:
        add(session, entity, 1, 1)
        running = claim(session, entity, owner="w")
        add(session, entity, 1, 1)
        assert documents(session, entity) == [(1, "claimed"), *beside]

        if beside:
            with pytest.raises(IntegrityError), session.begin_nested():
                release(session, running)
        fail(session, running)
        session.commit()
        complete(session, claim(session, entity, owner="w", limit=2))
        add(session, entity, 1, 1)
        unfinished = {(1, "claimed"), (1, "unclaimed")}
        there = documents(session, entity)
        # The failed job beside it waits for its next attempt.
        assert [each for each in there if each in unfinished] == [*beside, (1, "unclaimed")]


def test_unique_leaves_a_failed_job_where_it_is_if_it_has_a_successor(
    taken_for_granted: dict[str, Any], engine: Engine
) -> None:
    names = made(UNFINISHED, taken_for_granted)
    entity = names["Base"].__subclasses__()[-1]
    with Session(engine, expire_on_commit=False) as session:
        add(session, entity, 1, 2)
        fail(session, claim(session, entity, owner="w", limit=2))
        add(session, entity, 1)
        if engine.dialect.name == "sqlite":  # its driver begins nothing before a SAVEPOINT
            session.connection().exec_driver_sql("BEGIN")

        exec(BACK, {**names, "IntegrityError": IntegrityError, "session": session})
        session.commit()

        assert documents(session, entity) == [(1, "failed"), (2, "unclaimed"), (1, "unclaimed")]


DIALECTS = [
    make_url(f"{name}://").get_dialect()()
    for name in ("sqlite", "postgresql+psycopg2", "mysql+pymysql", "mariadb+pymysql")
]

#: SQLite has no partitions, and so no table of that page.
WITHOUT_PARTITIONS = ("docs/partitions.md", "sqlite")

#: What only a block with a table has.
TABLE = "__tablename__ ="

#: What a page may take from, as far as its tables go.
LIBRARIES = {"datetime", "enum", "sa_jobqueue", "sqlalchemy", "typing"}


def blocks_of(file: Path) -> Iterator[str]:
    """Give the Python of a page, or that of a module's docstrings, if it has tables."""
    text = file.read_text(encoding="utf-8")
    if TABLE not in text:  # each process of a test run reads all files
        return
    if file.suffix == ".md":
        yield from code_blocks(text, "python")
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            shown = re.findall(r"::\n\n((?: .*\n?|\n)+)", ast.get_docstring(node) or "")
            yield from map(textwrap.dedent, shown)


def tables_of(block: str, names: dict[str, Any]) -> Iterator[Table]:
    """Make the mapped classes of a block, with what they use of it."""
    body = ast.parse(block).body
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    used = {node.id for each in classes for node in ast.walk(each) if isinstance(node, ast.Name)}
    for node in body:
        if is_needed(node, used):
            exec(compile(ast.Module([node], []), "page", "exec", dont_inherit=True), names)
        if isinstance(node, ast.ClassDef) and hasattr(names[node.name], "__table__"):
            yield names[node.name].__table__


def is_needed(node: ast.stmt, used: set[str]) -> bool:
    match node:
        case ast.ImportFrom(module=str(module)) | ast.Import(names=[ast.alias(name=module)]):
            return module.partition(".")[0] in LIBRARIES
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name in used
        case _:
            return isinstance(node, ast.ClassDef)


SHOWN = {
    str(file.relative_to(ROOT)): blocks
    for file in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("sa_jobqueue/**/*.py"))
    if (blocks := [block for block in blocks_of(file) if TABLE in block])
}


@pytest.mark.parametrize("file", sorted(SHOWN))
def test_the_tables_of_a_page_can_be_created_on_all_databases(file: str) -> None:
    names = {**vars(sqlalchemy), **vars(orm), **vars(sa_jobqueue), "TraceMixin": TraceMixin}

    for block in SHOWN[file]:
        names["Base"] = orm.declarative_base()
        tables = list(tables_of(block, names))

        assert tables
        for made_table in tables:
            for dialect in DIALECTS:
                if (file, dialect.name) != WITHOUT_PARTITIONS:
                    CreateTable(made_table).compile(dialect=dialect)
