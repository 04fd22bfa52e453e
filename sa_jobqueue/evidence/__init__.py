"""Evidence: what the verbs did is recorded, and a checker judges it.

::

    with Ledger("history.jsonl").listen(Email):
        worker.run()

    sa-jobqueue check history.jsonl

======================  =====================================================
``ledger``              Ledger: events as lines of a file
``history_table``       history_table, HistoryTable: events as rows; job_records reads them
``lines``               how an event is written to a line
``history``             the files of a run, read as one history
``row_rules``           what must hold for each row
``queue_rules``         what must hold for a queue: order, limits, owners, nothing lost
``checker``             check: judge a history
``fault``               what it finds, and the story that it prints
======================  =====================================================
"""

from .checker import check, check_files
from .fault import Fault
from .history import History
from .history_table import HistoryTable, JobRecord, history_table, job_records
from .ledger import Ledger

__all__ = [
    "Fault",
    "History",
    "HistoryTable",
    "JobRecord",
    "Ledger",
    "check",
    "check_files",
    "history_table",
    "job_records",
]
