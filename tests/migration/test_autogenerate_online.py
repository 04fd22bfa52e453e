"""With online_indexes in env.py, autogenerate changes the indexes of a queue in use online."""

from __future__ import annotations

from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, MetaData
from sqlalchemy.orm import Mapped, declarative_base, mapped_column

from sa_jobqueue import JobMixin
from sa_jobqueue.migration import online_indexes
from tests.migration.support import columns_of, index_names
from tests.migration.test_autogenerate import body, generate
from tests.migration.test_autogenerate import project as project  # a fixture

CLAIM = "ix_invoice_claim"


def model(**queue_args: Any) -> MetaData:
    """Declare the queue as it is at one time."""

    class Invoice(JobMixin, declarative_base()):  # type: ignore[misc]  # a call
        __tablename__ = "invoice"
        __queue_args__ = queue_args
        id: Mapped[int] = mapped_column(primary_key=True)
        tenant: Mapped[int]

    metadata: MetaData = Invoice.metadata
    return metadata


@pytest.fixture
def live(project: Config) -> Config:
    """A project with a queue in use, whose claim index begins with its status."""
    project.attributes["settings"] = {
        "process_revision_directives": online_indexes,
        "transaction_per_migration": True,
    }
    project.attributes["metadata"] = model()
    generate(project, "a1")
    command.upgrade(project, "head")
    return project


def test_a_changed_claim_index_is_replaced_online_and_back(live: Config, engine: Engine) -> None:
    live.attributes["metadata"] = model(equality="tenant")

    source = generate(live, "a2")

    assert "from sa_jobqueue.migration import create_index_online" in source
    for function, columns in (
        ("upgrade", "['tenant', 'status', 'id']"),
        ("downgrade", "['status', 'id']"),
    ):
        written = body(source, function)
        assert written.startswith("create_index_online(op, ")
        assert f"'invoice', {columns}, unique=False" in written
        assert "replace=True" in written
        assert "op.create_index" not in written
        assert "drop_index" not in written
    command.upgrade(live, "head")
    assert columns_of(engine, CLAIM, "invoice") == ["tenant", "status", "id"]
    assert body(generate(live, "a3"), "upgrade") == "pass"
    command.downgrade(live, "a1")
    assert columns_of(engine, CLAIM, "invoice") == ["status", "id"]


@pytest.mark.parametrize("as_batch", [True, False])
def test_the_index_of_a_key_is_made_online_and_dropped(
    live: Config, engine: Engine, as_batch: bool
) -> None:
    live.attributes["settings"]["render_as_batch"] = as_batch
    live.attributes["metadata"] = model(per_key="tenant")

    source = generate(live, "a2")

    assert "create_index_online(op, " in body(source, "upgrade")
    assert "drop_index_online(op, " in body(source, "downgrade")
    command.upgrade(live, "head")
    key = "ix_invoice_key_tenant"
    assert columns_of(engine, key, "invoice") == ["status", "tenant", "id"]
    command.downgrade(live, "a1")
    assert key not in index_names(engine, "invoice")


def test_the_indexes_of_a_new_table_are_made_with_it(project: Config) -> None:
    project.attributes["settings"] = {"process_revision_directives": online_indexes}

    source = generate(project, "a1")

    assert "sa_jobqueue" not in source
    assert "op.create_index('ix_invoice_claim'" in body(source, "upgrade")
