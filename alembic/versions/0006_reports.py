"""Reports, with a partition for each day; SQLite has no partitions

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")

#: Name, first day, and the day after.
PARTITIONS = (
    ("d0101", "2030-01-01", "2030-01-02"),
    ("d0102", "2030-01-02", "2030-01-03"),
    ("d0103", "2030-01-03", "2030-01-04"),
)

#: MySQL and MariaDB name the partitions in CREATE TABLE; in PostgreSQL they are tables.
BY_DAY = "RANGE COLUMNS (day) ({})".format(
    ", ".join(f"PARTITION {name} VALUES LESS THAN ('{end}')" for name, _, end in PARTITIONS)
)


def upgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        return
    op.create_table(
        "example_report",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("title", sa.String(length=50), nullable=False),
        sa.Column("status", sa.String(length=16), server_default="unclaimed", nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=True),
        sa.Column("owner_date", TIMESTAMP, nullable=True),
        sa.PrimaryKeyConstraint("id", "day"),
        postgresql_partition_by="RANGE (day)",
        mysql_partition_by=BY_DAY,
        mariadb_partition_by=BY_DAY,
    )
    create_indexes()
    if op.get_context().dialect.name == "postgresql":
        create_partitions()


def create_indexes() -> None:
    """Create the claim index and the reap index; each partition gets its own."""
    for purpose, columns, status in (
        ("claim", ["status", "id", "day"], "unclaimed"),
        ("reap", ["status", "owner_date"], "claimed"),
    ):
        op.create_index(
            f"ix_example_report_{purpose}",
            "example_report",
            columns,
            postgresql_where=sa.text(f"status = '{status}'"),
        )


def create_partitions() -> None:
    """Create PostgreSQL's partitions; a nightly job would create those of later days."""
    for name, start, end in PARTITIONS:
        op.execute(
            f"CREATE TABLE example_report_{name} PARTITION OF example_report "
            f"FOR VALUES FROM ('{start}') TO ('{end}')"
        )


def downgrade() -> None:
    if op.get_context().dialect.name != "sqlite":
        op.drop_table("example_report")
