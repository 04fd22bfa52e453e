"""For a new table ``alembic revision --autogenerate`` is enough, and needs nothing of ours."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, String
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import (
    JobMixin,
    JobStatus,
    PriorityMixin,
    RetryMixin,
    ScheduleMixin,
    claim,
    complete,
)
from tests.docs.markdown import code_blocks, page
from tests.migration.support import ORDERS, ROOT, column_names, index_names, insert_orders, statuses

ENV = """
from alembic import context

connectable = context.config.attributes["engine"]
with connectable.connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=context.config.attributes["metadata"],
        compare_server_default=True,
        **context.config.attributes.get("settings", {}),
    )
    with context.begin_transaction():
        context.run_migrations()
"""


class Base(DeclarativeBase):
    pass


class Invoice(JobMixin, PriorityMixin, ScheduleMixin, RetryMixin, Base):
    """A queue with everything that a mixin adds."""

    __tablename__ = "invoice"
    __queue_args__ = {"equality": ["tenant"]}  # noqa: RUF012 - as users write it

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant: Mapped[int]


class Letter(JobMixin.named(status="job_status"), Base):  # type: ignore[misc]  # a call
    """A queue with its own words and names."""

    __tablename__ = "letter"
    __queue_args__ = {"names": {JobStatus.UNCLAIMED: "unsent"}}  # noqa: RUF012 - likewise

    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(10))


@pytest.fixture
def project(tmp_path: Path, engine: Engine) -> Config:
    """Make a user's project with this project's template for migrations."""
    shutil.copy(ROOT / "alembic" / "script.py.mako", tmp_path)
    (tmp_path / "env.py").write_text(ENV)
    (tmp_path / "versions").mkdir()
    config = Config(stdout=io.StringIO(), attributes={"engine": engine, "metadata": Base.metadata})
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("path_separator", "os")
    return config


def generate(project: Config, revision: str) -> str:
    command.revision(project, message="generated", autogenerate=True, rev_id=revision)
    folder = project.get_main_option("script_location")
    assert folder is not None
    return (Path(folder) / "versions" / f"{revision}_generated.py").read_text()


def body(source: str, function: str) -> str:
    """Return what a function of a migration does, without comments."""
    found = re.search(rf"def {function}\(\) -> None:\n(.*?)(?=\n\n\n|\Z)", source, re.S)
    assert found is not None
    lines = [line.strip() for line in found[1].splitlines()]
    return "\n".join(line for line in lines if line and not line.startswith("#"))


def test_the_migration_has_no_import_of_ours_and_a_second_one_is_empty(project: Config) -> None:
    first = generate(project, "a1")
    command.upgrade(project, "head")
    second = generate(project, "a2")

    assert "sa_jobqueue" not in first
    assert "op.create_table('invoice'" in body(first, "upgrade")
    assert (body(second, "upgrade"), body(second, "downgrade")) == ("pass", "pass")


def test_the_migration_looks_as_if_written_by_hand(project: Config) -> None:
    source = generate(project, "a1")

    assert re.findall(r"^(?:from|import) .*", source, re.M)[1:] == [
        "import sqlalchemy as sa",
        "from alembic import op",
        "from sqlalchemy.dialects import mysql",  # for the microseconds
    ]
    upgrade = body(source, "upgrade")
    assert re.findall(r"op\.(\w+)\('(\w+)'", upgrade) == [
        ("create_table", "invoice"),
        ("create_index", "ix_invoice_claim"),
        ("create_index", "ix_invoice_reap"),
        ("create_table", "letter"),
        ("create_index", "ix_letter_claim"),
        ("create_index", "ix_letter_reap"),
    ]
    assert "'status', sa.String(length=16), server_default='unclaimed', nullable=False" in upgrade
    unsent = "sa.text(\"job_status = 'unsent'\")"
    assert (
        "op.create_index('ix_letter_claim', 'letter', ['job_status', 'id'], unique=False, "
        f"postgresql_where={unsent}, sqlite_where={unsent})"
    ) in upgrade


def test_the_migration_builds_a_queue(project: Config, engine: Engine) -> None:
    generate(project, "a1")
    command.upgrade(project, "head")

    with Session(engine) as session:
        session.add(Invoice(tenant=1))
        session.commit()
        jobs = claim(session, Invoice, Invoice.tenant == 1, owner="clerk")
        session.commit()
        complete(session, jobs)
        session.commit()
        assert [job.status for job in jobs] == [JobStatus.DONE]


def test_the_migration_can_be_downgraded(project: Config, engine: Engine) -> None:
    first = generate(project, "a1")
    command.upgrade(project, "head")

    command.downgrade(project, "base")

    assert "op.drop_table('letter')" in body(first, "downgrade")
    assert generate_again(project) == body(first, "upgrade")


def generate_again(project: Config) -> str:
    """Write the first migration once more, into an empty folder."""
    folder = Path(str(project.get_main_option("script_location"))) / "versions"
    for file in folder.glob("*.py"):
        file.unlink()
    return body(generate(project, "b1"), "upgrade")


HEAD = """
revision, down_revision, branch_labels, depends_on = "p1", None, None, None
"""


def test_the_migration_of_the_page_is_run_as_it_stands_there(
    project: Config, engine: Engine
) -> None:
    (migration,) = (
        block for block in code_blocks(page("docs/migrations.md"), "python") if "downgrade" in block
    )
    folder = Path(str(project.get_main_option("script_location"))) / "versions"
    (folder / "p1_page.py").write_text(migration + HEAD)
    ORDERS.create(engine)
    insert_orders(engine, [1])

    command.upgrade(project, "head")

    assert statuses(engine) == {1: "done"}
    assert index_names(engine) == {"ix_orders_claim", "ix_orders_reap"}

    command.downgrade(project, "base")

    assert column_names(engine) == ["id", "amount", "note"]
