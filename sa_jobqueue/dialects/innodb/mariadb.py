"""MariaDB: SKIP LOCKED since 10.6, no FOR UPDATE OF, no RETURNING beside an index hint."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import Connection
from sqlalchemy.engine import Dialect

from ..capabilities import Version
from .database import InnoDB
from .examination import InnoDBExamination
from .isolation import OF_MARIADB
from .past_snapshot import has_snapshot_isolation, past_snapshot
from .schema_changes import MariaDBSchemaChanges


class MariaDB(InnoDB):
    """MariaDB 10.3 and later, under ``mariadb://`` and ``mysql://`` URLs alike."""

    title = "MariaDB"
    minimum = (10, 3)
    isolation_variable: ClassVar[str] = "@@tx_isolation"
    level_question: ClassVar[str] = OF_MARIADB

    def __init__(self, version: Version | None) -> None:
        super().__init__(version)
        self.skip_locked = self.at_least(10, 6)
        self.descending_indexes = self.at_least(10, 8)

    def past_snapshot(self, connection: Connection) -> Mapping[str, Any]:
        if self._has_snapshot_isolation is None:
            self._has_snapshot_isolation = has_snapshot_isolation(connection)
        return past_snapshot(connection) if self._has_snapshot_isolation else {}

    #: Asked once for each server.
    _has_snapshot_isolation: bool | None = None

    statement_limit: ClassVar[str] = "max_statement_time"
    limit_unit: ClassVar[timedelta] = timedelta(seconds=1)
    global_variables: ClassVar[str] = "information_schema.GLOBAL_VARIABLES"
    global_status: ClassVar[str] = "information_schema.GLOBAL_STATUS"

    # server_uid alone is not enough. It is made of a network card's address and the port:
    # containers on two hosts may have the same, and older servers have none.
    identified_by: ClassVar[tuple[str, ...]] = (
        "server_uid",
        "server_id",
        "hostname",
        "port",
        "datadir",
    )

    def examination(self) -> InnoDBExamination:
        return InnoDBExamination(self)

    def schema_changes(self) -> MariaDBSchemaChanges:
        return MariaDBSchemaChanges(self)

    @staticmethod
    def version_of(dialect: Dialect) -> Version | None:
        # server_version_info may begin with 5.5.5, a prefix for the replication protocol.
        version = getattr(dialect, "_mariadb_normalized_version_info", None)
        return version or getattr(dialect, "server_version_info", None)
