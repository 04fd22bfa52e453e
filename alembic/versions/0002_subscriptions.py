"""Subscriptions, claimed by advisory locks: on PostgreSQL only

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_context().dialect.name != "postgresql":
        return
    op.create_table(
        "example_mailing_subscription",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Integer(), nullable=False),
        sa.Column("last_mail_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "ix_example_mailing",
        "example_mailing_subscription",
        ["kind", sa.text("coalesce(last_mail_at, '-infinity'::timestamptz)")],
    )


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.drop_table("example_mailing_subscription")
