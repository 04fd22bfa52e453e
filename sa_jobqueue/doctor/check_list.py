"""The list of all checks.

A check is a function that gets a Subject and yields what it has found: a Finding that is a fact,
a warning or an error. Each runs in a transaction of its own, which is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from ..dialects.examination import Finding
from . import index_checks, lock_checks, server_checks, table_checks
from .subject import Subject

Check: TypeAlias = Callable[[Subject], Iterator[Finding]]

#: The checks by the name that their findings bear, in the order in which they run.
CHECKS: Mapping[str, Check] = {
    "table": table_checks.check_table,
    "strategy": table_checks.check_strategy,
    "columns": table_checks.check_columns,
    "statuses": table_checks.check_statuses,
    "index": index_checks.check_index,
    "reap": index_checks.check_reap,
    "failed": index_checks.check_failed,
    "statistics": server_checks.check_statistics,
    "dead_rows": server_checks.check_dead_rows,
    "snapshot": server_checks.check_snapshot,
    "isolation": server_checks.check_isolation,
    "owners": server_checks.check_owners,
    "pooler": server_checks.check_pooler,
    "locks": lock_checks.check_locks,
}

#: These run in each examination. An error of one ends it: the others need what it looks for.
NEEDED = ("table", "strategy")

#: What locks something, and runs only where it is asked for by name.
LOCKING = ("locks",)
