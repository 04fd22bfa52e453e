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
    create_claim_index,
    create_reap_index,
    drop_claim_index,
    drop_job_columns,
    drop_reap_index,
    reset_storage,
    tune_storage,
)

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

MIXINS = (JobMixin.named(status="job_status"), PriorityMixin)


def upgrade() -> None:
    add_job_columns(op, "example_order", *MIXINS, existing_rows="done")
    create_claim_index(op, "example_order", *MIXINS, key="id")
    create_reap_index(op, "example_order", *MIXINS)
    tune_storage(op, "example_order")


def downgrade() -> None:
    reset_storage(op, "example_order")
    drop_reap_index(op, "example_order")
    drop_claim_index(op, "example_order")
    drop_job_columns(op, "example_order", *MIXINS)
