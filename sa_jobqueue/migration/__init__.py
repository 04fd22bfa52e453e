"""Functions for migrations of a table with rows: columns, indexes, rows, storage.

For a new table ``alembic revision --autogenerate`` is enough, and needs nothing of this
package. A table that has rows becomes a queue by these functions, which take Alembic's
``op``, while the application goes on writing to it::

    from alembic import op
    from sa_jobqueue import JobMixin
    from sa_jobqueue.migration import (
        add_job_columns, create_claim_index, create_reap_index, tune_storage
    )

    def upgrade() -> None:
        add_job_columns(op, "orders", JobMixin, existing_rows="done")
        create_claim_index(op, "orders", JobMixin)
        create_reap_index(op, "orders", JobMixin)
        tune_storage(op, "orders")

They commit by themselves, so give ``context.configure()`` the setting
``transaction_per_migration=True``. Only the functions for the tables of control and of schedules
run in the migration's own transaction. See ``docs/migrations.md``. This package is the only
one that imports Alembic, and ``import sa_jobqueue`` does not import it.
"""

from ..dialects.clock import clock_default
from ..model.columns import timestamp_type
from .autogenerate import create_index_online, drop_index_online, online_indexes
from .backfill_rows import BATCH, Progress, backfill
from .columns import add_job_columns, drop_job_columns
from .control_tables import (
    create_control_tables,
    create_schedules_table,
    drop_control_tables,
    drop_schedules_table,
)
from .indexes import (
    create_claim_index,
    create_key_index,
    create_reap_index,
    drop_claim_index,
    drop_key_index,
    drop_reap_index,
)
from .runner import PATIENCE, Op, patiently
from .storage import DEAD_ROWS, FILLFACTOR, reset_storage, tune_storage

__all__ = [
    "BATCH",
    "DEAD_ROWS",
    "FILLFACTOR",
    "PATIENCE",
    "Op",
    "Progress",
    "add_job_columns",
    "backfill",
    "clock_default",
    "create_claim_index",
    "create_control_tables",
    "create_index_online",
    "create_key_index",
    "create_reap_index",
    "create_schedules_table",
    "drop_claim_index",
    "drop_control_tables",
    "drop_index_online",
    "drop_job_columns",
    "drop_key_index",
    "drop_reap_index",
    "drop_schedules_table",
    "online_indexes",
    "patiently",
    "reset_storage",
    "timestamp_type",
    "tune_storage",
]
