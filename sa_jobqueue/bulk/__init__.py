"""Bulk loads that survive a crash: resume or roll back.

::

    source = InsertSource(engine, Email, rows, total=1_000_000)
    load = BulkLoad(source, FileLog("loads/may"), workers=4)
    load.run()          # after a crash: run() again to go on, or rollback()
    load.clean()        # the logs are not needed any more

docs/bulk.md has the states, what each log promises, the command line, and how to
write a source of your own.
"""

from ..errors import BatchInDoubt, BrokenLog, InvalidState, LoadStopped, SourceChanged
from .log import Entry, Head, Log
from .logs.database_log import DatabaseLog
from .logs.file_log import FileLog
from .logs.tables import LoadTables, load_tables
from .manager import BulkLoad
from .progress import Progress
from .source import BatchWriter, DivisibleSource, Metadata
from .sources.enqueue_source import EnqueueSource
from .sources.insert_source import InsertSource
from .states import LoadState

__all__ = [
    "BatchInDoubt",
    "BatchWriter",
    "BrokenLog",
    "BulkLoad",
    "DatabaseLog",
    "DivisibleSource",
    "EnqueueSource",
    "Entry",
    "FileLog",
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
