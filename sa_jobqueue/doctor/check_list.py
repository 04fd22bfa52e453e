"""The list of all checks.

A check is a function that gets a Case and yields what it has found: an Answer that is ok,
a warning or an error. Each runs in a transaction of its own, which is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from ..dialects.examination import Answer
from . import claim_checks, index_checks, lock_checks, server_checks
from .case import Case
from .report import Cost

Check: TypeAlias = Callable[[Case], Iterator[Answer | Cost]]

#: The checks by the name that their findings bear, in the order in which they run.
CHECKS: Mapping[str, Check] = {
    "version": server_checks.check_version,
    "table": server_checks.check_table,
    "strategy": server_checks.check_strategy,
    "columns": server_checks.check_columns,
    "index": index_checks.check_index,
    "plan": index_checks.check_plan,
    "statistics": index_checks.check_statistics,
    "cost": claim_checks.check_cost,
    "reap": index_checks.check_reap,
    "failed": index_checks.check_failed,
    "updates": claim_checks.check_updates,
    "garbage": server_checks.check_garbage,
    "snapshot": server_checks.check_snapshot,
    "isolation": server_checks.check_isolation,
    "owners": server_checks.check_owners,
    "pooler": server_checks.check_pooler,
}

#: What examine_locks() looks at, by two connections.
OF_LOCKS: Mapping[str, Check] = {
    "table": server_checks.check_table,
    "strategy": server_checks.check_strategy,
    "locks": lock_checks.check_locks,
    "owners": lock_checks.check_owner,
}

#: An error of one of these ends the examination: the later checks need what it looks for.
NEEDED = ("table", "strategy")

#: What examine_index() looks at.
OF_INDEX = (*NEEDED, "index", "plan")

#: What examine_plan() looks at: it may change while workers run.
OF_PLAN = (*OF_INDEX, "statistics", "snapshot")

#: What claims jobs, and is left out with run=False.
CLAIMING = ("cost",)
