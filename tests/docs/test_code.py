"""The code of pages runs from top to bottom, and does what the pages say.

Each table that a page or a docstring shows is created on one of the four databases, with --full on
each.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from cryptography import fernet
from sqlalchemy import URL, Engine, Table, func, insert, inspect, orm, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

import sa_jobqueue
from sa_jobqueue import JobQueue, claim, complete, enqueue, fail, release
from sa_jobqueue.bulk import FileLog, LoadState
from sa_jobqueue.migration import patiently
from sa_jobqueue.otel import TraceMixin
from sa_jobqueue.worker import Worker
from tests.migration.support import migrating
from tests.models import Email, Task, add_tasks
from tests.support import SERVERS

from .followed import part, shown
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
        ("asyncio", ["to anna@example.org"]),
        ("limits", [f"to customer {number}" for number in range(5)]),
        # Bert's email is not due yet.
        ("coming-from", [f"to {name}@example.org" for name in ("anna", "carla", "dora")]),
    ],
)
def test_a_page_that_needs_nothing_prints_what_it_says(
    name: str,
    printed: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # for the files of SQLite

    run("\n".join(code_of(name)))

    assert capsys.readouterr().out.splitlines() == printed


def test_outbox_shows_the_code_of_the_example() -> None:
    files = (ROOT / "examples" / "outbox").glob("*.py")
    code = " ".join(file.read_text("utf-8") for file in files)

    assert [block for block in code_of("outbox") if one_line(block) not in one_line(code)] == []


def one_line(code: str) -> str:
    return " ".join(code.replace(": ClassVar[dict[str, Any]]", "").split())


def test_groups_runs_the_report_after_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    run("\n".join(code_of("groups")))["engine"].dispose()

    *pages, report, done = capsys.readouterr().out.splitlines()
    assert sorted(pages) == ["page 1", "page 2", "page 3"]
    assert [report, done] == ["report 1", "3 parts are done"]


RECIPES = "\n".join(code_of("recipes"))


def test_the_recipes_show_a_job_its_place_and_its_time(
    taken_for_granted: dict[str, Any], engine: Engine
) -> None:
    rows: list[dict[str, Any]] = [{}] * 33
    names = made(RECIPES, taken_for_granted, *rows, entity="Render")
    shown = names["shown"]
    with Session(engine) as session:
        claimed = claim(session, names["Render"], owner="w", limit=31)
        waiting = session.scalars(select(names["Render"]).filter_by(status="unclaimed")).all()
        first, second = sorted(waiting, key=lambda job: int(job.id))
        assert [shown(session, job) for job in (first, second)] == ["1 in line", "2 in line"]

        complete(session, claimed[:30])
        session.commit()

        assert shown(session, second) == "2 in line, about 20 s"
        assert shown(session, claimed[30]) == "claimed"
        assert names["hurry"](session, [claimed[30], second, first]) == [None, 2, 1]


THREE: list[dict[str, Any]] = [{"id": number} for number in (1, 2, 3)]


def test_rounds_mail_everybody_once_in_each_round(
    taken_for_granted: dict[str, Any], engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    model, mail, at_once, chunks, readers, mail_readers, upgrade = code_of("schedules")[-7:]
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

    queue, service, many, offer, dead = code_of("retries")
    Task.metadata.create_all(engine)
    expiring = {**taken_for_granted, "ExpiryMixin": sa_jobqueue.ExpiryMixin}
    made(offer.split("\n\n\n")[0], expiring)
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
    _, _, loading, in_tables, _ = code_of("bulk")
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


PARTITIONS = part(page("docs/databases.md"), "Partitions")


def execute_line(engine: Engine, when: str) -> None:
    """Run the statements of a line of the page as it says."""
    lines = {line["partitions"]: line for line in table(PARTITIONS, "partitions")}
    database = "PostgreSQL" if engine.dialect.name == "postgresql" else "MySQL, MariaDB"
    for code in re.findall("`([^`]+)`", lines[when][database]):
        if " " in code:
            with migrating(engine) as op:
                patiently(op, lambda: op.execute(code))  # noqa: B023 - called at once


@pytest.mark.only_on(*SERVERS)
def test_partitions_makes_adds_and_drops_days(
    taken_for_granted: dict[str, Any], engine: Engine
) -> None:
    report = made(code_blocks(PARTITIONS, "python")[0], taken_for_granted)["Report"]
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

FOREVER, FOREVER_USE, UNFINISHED, PARTIAL, BACK, FRESH, NEWEST = code_of("unique")


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


def test_unique_puts_a_waiting_job_off(taken_for_granted: dict[str, Any], engine: Engine) -> None:
    names = made(FRESH, taken_for_granted)
    entity = names["Refresh"]
    with Session(engine) as session:
        add(session, entity, 7)
        exec(
            "from datetime import UTC, datetime, timedelta\n" + NEWEST,
            {**names, "session": session},
        )
        session.commit()

        assert documents(session, entity) == [(7, "unclaimed")]
        assert not claim(session, entity, owner="w")


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


#: SQLite has no partitions, and so no table of that block.
PARTITIONED = "_partition_by"

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


#: Its blocks are one program, whose tables are created by a test of their own.
del SHOWN["docs/recipes.md"]


@pytest.mark.by_turns("sqlite", *SERVERS)
@pytest.mark.parametrize("file", sorted(SHOWN))
def test_the_tables_of_a_page_are_created(file: str, engine: Engine) -> None:
    names = {**vars(sqlalchemy), **vars(orm), **vars(sa_jobqueue), "TraceMixin": TraceMixin}

    for block in SHOWN[file]:
        names["Base"] = orm.declarative_base()
        metadata = [made_table.metadata for made_table in tables_of(block, names)]

        assert metadata
        if not (engine.dialect.name == "sqlite" and PARTITIONED in block):
            metadata[0].create_all(engine)
            metadata[0].drop_all(engine)


EXAMPLES = (
    *("README.md", "docs/index.md", "docs/tasks.md", "docs/claiming.md", "docs/groups.md"),
    *("docs/limits.md", "docs/coming-from.md"),
)


@pytest.mark.parametrize("file", EXAMPLES)
def test_an_example_runs_on_each_database_with_its_url_alone(
    file: str, fresh_database: URL
) -> None:
    code = "\n".join(code_blocks(page(file), "python"))
    url = shown(fresh_database)

    code, urls = re.subn(r'create_engine\("sqlite:[^"]*"\)', f"create_engine({url!r})", code)
    names = run(code)

    assert urls == 1
    names["engine"].dispose()


def test_the_recipes_run_on_each_database(
    taken_for_granted: dict[str, Any], engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    names = made(RECIPES, taken_for_granted)
    by_sql, innodb, sqlite = code_blocks(page("docs/recipes.md"), "sql")
    (postgresql,) = code_blocks(page("docs/recipes.md"), "postgresql")
    own = {"postgresql": postgresql, "sqlite": sqlite}
    with engine.begin() as connection:
        connection.exec_driver_sql(by_sql)
        connection.exec_driver_sql(own.get(engine.dialect.name, innodb))
    with Session(engine) as session:
        session.add(names["Customer"](name="ann"))
        session.commit()
        names["bill_everybody"].enqueue(session)
        session.commit()
        assert names["report"](session, 2) == "0 of 2 are done"

    Worker(engine, names["tasks"], drain=True).run()

    printed = capsys.readouterr().out.splitlines()
    assert sorted(printed) == ["bill 1", "bill 1", "bill 7", "bound", "page 0", "page 1"]
    assert printed.index("bound") > max(printed.index("page 0"), printed.index("page 1"))


def test_a_recipe_delays_a_task_by_sql(
    taken_for_granted: dict[str, Any], engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    names = made(RECIPES, taken_for_granted)
    _, told = page("docs/recipes.md").split("For a delay, insert a `run_at`")
    postgresql, innodb, sqlite = re.findall("`([^`]+)`", told)[:3]
    in_an_hour = {"postgresql": postgresql, "sqlite": sqlite}.get(engine.dialect.name, innodb)
    values = f"""('bill', '{{"customer_id": 8}}', {in_an_hour})"""
    with engine.begin() as connection:
        connection.exec_driver_sql(f"INSERT INTO task (name, arguments, run_at) VALUES {values}")

    Worker(engine, names["tasks"], drain=True).run()

    with Session(engine) as session:
        (task,) = session.scalars(select(names["Task"]))
        assert timedelta(minutes=59) < task.run_at - datetime.now(UTC) < timedelta(minutes=61)
    assert capsys.readouterr().out == ""


def test_the_recipes_encrypt_a_column_and_load_the_row_beside_a_job(
    taken_for_granted: dict[str, Any], engine: Engine
) -> None:
    names = made(RECIPES, taken_for_granted)
    names["fernet"] = fernet.Fernet(fernet.Fernet.generate_key())
    with Session(engine) as session:
        session.add(names["Letter"](text="a secret"))
        session.add(names["Welcome"](customer=names["Customer"](name="ann")))
        session.commit()
    letters, welcomes = JobQueue(names["Letter"]), JobQueue(names["Welcome"])
    handled: list[str] = []
    letters.handler(lambda letter: handled.append(letter.text))
    welcomes.handler(lambda welcome: handled.append(welcome.customer.name))

    Worker(engine, [letters, welcomes], drain=True).run()

    assert handled == ["a secret", "ann"]
    with engine.connect() as connection:
        stored = connection.exec_driver_sql("SELECT text FROM letter").scalar()
    assert "secret" not in str(stored)


def test_the_statement_for_autoscalers_counts_due_and_claimed_jobs(
    taken_for_granted: dict[str, Any], engine: Engine
) -> None:
    postgresql, mysql, sqlite = code_blocks(part(page("docs/production.md"), "Autoscale"), "sql")
    own = {"postgresql": postgresql, "sqlite": sqlite}
    (application,) = (block for block in code_of("production") if "class Email" in block)
    Email = made(  # noqa: N806 - a class
        "\n".join(block for block in [application.replace("os.environ", "DATABASES")]),
        {**taken_for_granted, "DATABASES": {"DATABASE_URL": engine.url}},
    )["Email"]
    later = datetime.now(UTC) + timedelta(days=1)
    with Session(engine) as session:
        enqueue(session, Email, [{"recipient": "ann"}] * 4)
        enqueue(session, Email, [{"recipient": "bo", "run_at": later}])
        claim(session, Email, owner="w")
        session.commit()

        counted = session.scalar(text(own.get(engine.dialect.name, mysql)))

    assert counted == 4
