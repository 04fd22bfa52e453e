"""Bulk loads that survive a crash: resume or roll back.

::

    source = InsertSource(engine, Email, rows, total=1_000_000)
    load = BulkLoad(source, FileLog("loads/may"), workers=4)
    load.run()          # killed? the same again goes on; load.rollback() takes back
    load.clean()

See docs/bulk.md for the states, what each log promises, and the command line.
"""

from ..errors import BatchInDoubt, BrokenLog, InvalidState, LoadStopped, SourceChanged
from .log import Entry, Head, Log
from .logs.database_log import DatabaseLog
from .logs.file_log import FileLog
from .logs.tables import LoadTables, load_tables
from .manager import BulkLoad
from .progress import Progress
from .source import DivisibleSource, Hand, Metadata
from .sources.enqueue_source import EnqueueSource
from .sources.insert_source import InsertSource
from .states import LoadState

__all__ = [
    "BatchInDoubt",
    "BrokenLog",
    "BulkLoad",
    "DatabaseLog",
    "DivisibleSource",
    "EnqueueSource",
    "Entry",
    "FileLog",
    "Hand",
    "Head",
    "InsertSource",
    "InvalidState",
    "LoadState",
    "LoadStopped",
    "LoadTables",
    "Log",
    "Metadata",
    "Progress",
    "SourceChanged",
    "load_tables",
]
