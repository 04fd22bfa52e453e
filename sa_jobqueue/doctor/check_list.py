"""The list of all checks.

A check is a function that gets a Subject and yields what it has found: a Finding that is a fact,
a warning or an error. Each runs in a transaction of its own, which is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from ..dialects.examination import Finding
from .table_checks import check_table, check_strategy, check_columns, check_statuses
from .index_checks import check_index, check_reap, check_failed
from .server_checks import (
    check_statistics,
    check_dead_rows,
    check_snapshot,
    check_isolation,
    check_owners,
    check_pooler,
)
from .lock_checks import check_locks
from .subject import Subject

Check: TypeAlias = Callable[[Subject], Iterator[Finding]]

#: The checks by the name that their findings bear, in the order in which they run.
CHECKS: Mapping[str, Check] = {
    "table": check_table,
    "strategy": check_strategy,
    "columns": check_columns,
    "statuses": check_statuses,
    "index": check_index,
    "reap": check_reap,
    "failed": check_failed,
    "statistics": check_statistics,
    "dead_rows": check_dead_rows,
    "snapshot": check_snapshot,
    "isolation": check_isolation,
    "owners": check_owners,
    "pooler": check_pooler,
    "locks": check_locks,
}

#: These run in each examination. An error of one ends it: the others need what it looks for.
NEEDED = ("table", "strategy")

#: What locks something, and runs only where it is asked for by name.
LOCKING = ("locks",)
