"""Orders with UUID keys, claimed in the order of placed_at

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
UNCLAIMED = sa.text("status = 'unclaimed'")
CLAIMED = sa.text("status = 'claimed'")


def upgrade() -> None:
    op.create_table(
        "example_uuid_order",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("customer", sa.String(length=100), nullable=False),
        sa.Column("placed_at", TIMESTAMP, nullable=False),
        sa.Column("status", sa.String(length=16), server_default="unclaimed", nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=True),
        sa.Column("owner_date", TIMESTAMP, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "ix_example_uuid_order_claim",
        "example_uuid_order",
        ["status", "placed_at", "id"],
        postgresql_where=UNCLAIMED,
        sqlite_where=UNCLAIMED,
    )
    op.create_index(
        "ix_example_uuid_order_reap",
        "example_uuid_order",
        ["status", "owner_date"],
        postgresql_where=CLAIMED,
        sqlite_where=CLAIMED,
    )


def downgrade() -> None:
    op.drop_table("example_uuid_order")
