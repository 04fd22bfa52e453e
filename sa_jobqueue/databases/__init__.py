"""What a database can do: one file for each database, and what they have in common.

To add a database, subclass :class:`Database`, tell how its clock is read with
``@compiles(utc_now, "its-name")``, and name the class in an entry point of the group
``sa_jobqueue.databases``.
"""

from .clock import utc_now
from .connections import driver_connection, is_integrity_error, is_of_driver
from .database import Database
from .named_locks import Limits
from .registry import (
    assume_locks,
    database_of,
    database_of_dialect,
    database_of_engine,
    dialect_of,
    is_failed_transaction,
    is_lock_timeout,
    is_missing_index,
    is_missing_table,
    is_mistake,
    is_read_only,
    is_refusal,
    is_refused_login,
    is_shortage,
    is_time_limit,
    is_transient,
    is_undone,
    locks_are_assumed,
    look_alike,
)

__all__ = [
    "Database",
    "Limits",
    "assume_locks",
    "database_of",
    "database_of_dialect",
    "database_of_engine",
    "dialect_of",
    "driver_connection",
    "is_failed_transaction",
    "is_integrity_error",
    "is_lock_timeout",
    "is_missing_index",
    "is_missing_table",
    "is_mistake",
    "is_of_driver",
    "is_read_only",
    "is_refusal",
    "is_refused_login",
    "is_shortage",
    "is_time_limit",
    "is_transient",
    "is_undone",
    "locks_are_assumed",
    "look_alike",
    "utc_now",
]
