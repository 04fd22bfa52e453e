"""MySQL: SKIP LOCKED since 8.0.1, no RETURNING."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from sqlalchemy import Index
from sqlalchemy.dialects.mysql import dialect

from .capabilities import Version
from .innodb import InnoDB, in_text

#: The SELECT of the open transaction's level: at once and exactly. It is on by default since 8.0.
_LEVEL = """
SELECT isolation_level FROM performance_schema.events_transactions_current
WHERE state = 'ACTIVE' AND thread_id = (
  SELECT thread_id FROM performance_schema.threads WHERE processlist_id = CONNECTION_ID()
)
"""


class MySQL(InnoDB):
    """MySQL 5.7 and later, by any driver."""

    title = "MySQL"
    examined_by = "examination.innodb:MySQLExamination"
    changed_by = "schema_changes.innodb:MySQLSchemaChanges"
    minimum = (5, 7)

    def __init__(self, version: Version | None) -> None:
        super().__init__(version)
        self.skip_locked = self.lock_of = self.descending_indexes = self.at_least(8, 0, 1)
        self.window_functions = self.at_least(8, 0, 2)

    statement_limit: ClassVar[str] = "max_execution_time"
    limit_unit: ClassVar[timedelta] = timedelta(milliseconds=1)
    level_question: ClassVar[str] = _LEVEL
    global_variables: ClassVar[str] = "performance_schema.global_variables"
    global_status: ClassVar[str] = "performance_schema.global_status"
    identified_by: ClassVar[tuple[str, ...]] = ("server_uuid", "aurora_server_id")

    def index_hint(self, index: Index) -> str | None:
        """Bind locking reads to the claim index.

        On a small or young table the optimizer scans and sorts instead, and InnoDB
        keeps all sorted rows locked: while one claimer had three of six rows, a second
        claimer was seen to get none. Where the table has no such index, MySQL ignores
        this comment; FORCE INDEX would be an error.
        """
        if not self.at_least(8, 0, 20) or index.table is None:
            return None
        preparer = dialect().identifier_preparer
        words = in_text(preparer.quote(index.table.name), preparer.format_index(index))
        return f"/*+ INDEX({words}) */"
