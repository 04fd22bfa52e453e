"""Clips that pass through a workflow, and the log of their transitions

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from sa_jobqueue.migration import clock_default

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def upgrade() -> None:
    op.create_table(
        "example_clip",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("frames", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), server_default="submitted", nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=True),
        sa.Column("owner_date", TIMESTAMP, nullable=True),
        sa.Column("run_at", TIMESTAMP, server_default=clock_default(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("max_attempts", sa.Integer(), server_default="20", nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    # Each index serves several statuses; SQLite would use a partial index of them for no query.
    for purpose, columns, statuses in (
        ("claim", ["status", "run_at", "id"], "'submitted', 'checked', 'rendered'"),
        ("reap", ["status", "owner_date"], "'checking', 'sending', 'publishing'"),
    ):
        op.create_index(
            f"ix_example_clip_{purpose}",
            "example_clip",
            columns,
            postgresql_where=sa.text(f"status IN ({statuses})"),
        )
    op.create_table(
        "example_clip_log",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("clip_id", sa.Integer(), nullable=False),
        sa.Column("before", sa.String(length=16), nullable=False),
        sa.Column("after", sa.String(length=16), nullable=False),
        sa.Column("verb", sa.String(length=16), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_example_clip_log_clip_id", "example_clip_log", ["clip_id"])


def downgrade() -> None:
    op.drop_table("example_clip_log")
    op.drop_table("example_clip")
