"""Orders, as autogenerate wrote it; the type and the default of `run_at` fit every database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from sa_jobqueue.migration import clock_default, timestamp_type

revision = "0001"
down_revision = None

UNCLAIMED = sa.text("status = 'unclaimed'")
CLAIMED = sa.text("status = 'claimed'")
UNSUCCESSFUL = sa.text("status IN ('failed', 'cancelled')")
UNFINISHED = sa.text("status NOT IN ('done', 'failed', 'cancelled')")


def upgrade() -> None:
    """Create the table of the orders, with the queue's columns and indexes."""
    op.create_table(
        "shop_order",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("customer", sa.String(100), nullable=False),
        sa.Column("item", sa.String(100), nullable=False),
        sa.Column("status", sa.String(16), server_default="unclaimed", nullable=False),
        sa.Column("owner", sa.String(64)),
        sa.Column("owner_date", timestamp_type()),
        sa.Column("run_at", timestamp_type(), server_default=clock_default(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("max_attempts", sa.Integer(), server_default="20"),
        sa.Column("last_error", sa.Text()),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "ix_shop_order_claim",
        "shop_order",
        ["status", "run_at", "id"],
        postgresql_where=UNCLAIMED,
        sqlite_where=UNCLAIMED,
    )
    op.create_index(
        "ix_shop_order_key_customer",
        "shop_order",
        ["status", "customer", "attempts", "run_at", "id"],
        postgresql_where=UNFINISHED,
    )
    op.create_index(
        "ix_shop_order_failed",
        "shop_order",
        ["status", "owner_date", "id"],
        postgresql_where=UNSUCCESSFUL,
        sqlite_where=UNSUCCESSFUL,
    )
    op.create_index(
        "ix_shop_order_reap",
        "shop_order",
        ["status", "owner_date"],
        postgresql_where=CLAIMED,
        sqlite_where=CLAIMED,
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("shop_order")
