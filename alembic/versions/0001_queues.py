"""Emails, text messages and letters: queues from the first day

Revision ID: 0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from sa_jobqueue.migration import clock_default

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def upgrade() -> None:
    op.create_table(
        "example_batches_email",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("recipient", sa.String(length=100), nullable=False),
        sa.Column("status", sa.String(length=16), server_default="unclaimed", nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=True),
        sa.Column("owner_date", TIMESTAMP, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    create_indexes("example_batches_email", ["status", "id"])
    op.create_table(
        "example_text_message",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("phone", sa.String(length=20), nullable=False),
        sa.Column("status", sa.String(length=16), server_default="unclaimed", nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=True),
        sa.Column("owner_date", TIMESTAMP, nullable=True),
        sa.Column("run_at", TIMESTAMP, server_default=clock_default(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("max_attempts", sa.Integer(), server_default="20", nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    create_indexes("example_text_message", ["status", "run_at", "id"])
    op.create_table(
        "example_letter",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("recipient", sa.String(length=100), nullable=False),
        sa.Column("status", sa.String(length=16), server_default="unsent", nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=True),
        sa.Column("owner_date", TIMESTAMP, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    create_indexes("example_letter", ["status", "id"], unclaimed="unsent")


def create_indexes(table: str, claim: list[str], *, unclaimed: str = "unclaimed") -> None:
    """Create the claim index and the reap index."""
    for purpose, columns, status in (
        ("claim", claim, unclaimed),
        ("reap", ["status", "owner_date"], "claimed"),
    ):
        where = sa.text(f"status = '{status}'")
        op.create_index(
            f"ix_{table}_{purpose}", table, columns, postgresql_where=where, sqlite_where=where
        )


def downgrade() -> None:
    op.drop_table("example_letter")
    op.drop_table("example_text_message")
    op.drop_table("example_batches_email")
