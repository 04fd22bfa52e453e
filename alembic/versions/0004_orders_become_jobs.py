"""Orders become jobs, while the shop goes on selling

The existing orders were shipped by hand, so no worker may claim them.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

from alembic import op

from sa_jobqueue import JobMixin, PriorityMixin
from sa_jobqueue.migration import (
    add_job_columns,
    create_job_indexes,
    drop_job_columns,
    drop_job_indexes,
    tune_storage,
)

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

MIXINS = (JobMixin.named(status="job_status"), PriorityMixin)


def upgrade() -> None:
    add_job_columns(op, "example_order", *MIXINS, existing_rows="done")
    create_job_indexes(op, "example_order", *MIXINS, key="id")
    tune_storage(op, "example_order")


def downgrade() -> None:
    drop_job_indexes(op, "example_order")
    drop_job_columns(op, "example_order", *MIXINS)
