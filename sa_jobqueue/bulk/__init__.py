"""Bulk loads that survive a crash: resume or roll back.

::

    source = InsertSource(engine, Email, rows, total=1_000_000)
    load = BulkLoad(source, FileLog("loads/may"))
    load.run()          # after a crash: run() again to go on, or rollback()
    load.clean()        # the log is not needed any more

docs/bulk.md has the states, what each log promises, the command line, and how to
write a source of your own.
"""

from ..errors import BatchInDoubt, BrokenLog, InvalidState, LoadStopped, SourceChanged
from .insert_source import EnqueueSource, InsertSource
from .log import DatabaseLog, FileLog, LoadState, Log, load_table
from .manager import BulkLoad, DivisibleSource, Metadata, Progress, Source

__all__ = [
    "BatchInDoubt",
    "BrokenLog",
    "BulkLoad",
    "DatabaseLog",
    "DivisibleSource",
    "EnqueueSource",
    "FileLog",
    "InsertSource",
    "InvalidState",
    "LoadState",
    "LoadStopped",
    "Log",
    "Metadata",
    "Progress",
    "Source",
    "SourceChanged",
    "load_table",
]
