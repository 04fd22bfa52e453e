"""Functions for migrations of a table with rows: columns, indexes, rows, storage.

For a new table ``alembic revision --autogenerate`` is enough, and needs nothing of this
package. A table that has rows becomes a queue by these functions, which take Alembic's
``op``, while the application goes on writing to it::

    from alembic import op
    from sa_jobqueue import JobMixin
    from sa_jobqueue.migration import add_job_columns, create_job_indexes, tune_storage

    def upgrade() -> None:
        add_job_columns(op, "orders", JobMixin, existing_rows="done")
        create_job_indexes(op, "orders", JobMixin)
        tune_storage(op, "orders")

They commit by themselves, so give ``context.configure()`` the setting
``transaction_per_migration=True``. See ``docs/migrations.md``. This package is the only
one that imports Alembic, and ``import sa_jobqueue`` does not import it.
"""

from ..databases.clock import clock_default
from ..model.columns import timestamp_type
from .autogenerate import online_indexes
from .columns import add_job_columns, backfill, drop_job_columns
from .indexes import create_index_online, create_job_indexes, drop_index_online, drop_job_indexes
from .runner import Op, patiently, tune_storage

__all__ = [
    "Op",
    "add_job_columns",
    "backfill",
    "clock_default",
    "create_index_online",
    "create_job_indexes",
    "drop_index_online",
    "drop_job_columns",
    "drop_job_indexes",
    "online_indexes",
    "patiently",
    "timestamp_type",
    "tune_storage",
]
