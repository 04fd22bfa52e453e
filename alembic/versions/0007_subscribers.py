"""Subscribers, who are mailed in rounds, and the table of the rounds

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def upgrade() -> None:
    op.create_table(
        "example_subscriber",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("address", sa.String(length=100), nullable=False),
        sa.Column("status", sa.String(length=16), server_default="unclaimed", nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=True),
        sa.Column("owner_date", TIMESTAMP, nullable=True),
        sa.Column("round", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    for purpose, columns, status in (
        ("claim", ["status", "round", "id"], "unclaimed"),
        ("reap", ["status", "owner_date"], "claimed"),
    ):
        where = sa.text(f"status = '{status}'")
        op.create_index(
            f"ix_example_subscriber_{purpose}",
            "example_subscriber",
            columns,
            postgresql_where=where,
            sqlite_where=where,
        )
    op.create_table(
        "example_subscriber_rounds",
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("criteria", sa.String(length=64), nullable=False),
        sa.Column("begun_at", TIMESTAMP, nullable=False),
        sa.Column("started_at", TIMESTAMP, nullable=True),
        sa.PrimaryKeyConstraint("round"),
    )
    op.create_table(
        "example_subscriber_mail",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("subscriber", sa.Integer(), nullable=False),
        sa.Column("mailing", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def downgrade() -> None:
    op.drop_table("example_subscriber_mail")
    op.drop_table("example_subscriber_rounds")
    op.drop_table("example_subscriber")
