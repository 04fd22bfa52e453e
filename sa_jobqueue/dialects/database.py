"""A database as the rest of the library sees it: its capabilities, and the parts it provides.

Each part (named locks, serial key locks, examination, schema changes) is a class of its own in
the database's folder. A part takes :class:`~.capabilities.Capabilities` only, so imports
run one way: capabilities, then parts, then the database.
"""

from __future__ import annotations

from ..errors import UnsupportedDatabase
from .capabilities import Capabilities
from .examination import Examination
from .named_locks import NamedLocks
from .schema_changes import SchemaChanges
from .serial_key_locks import SerialKeyLocks


class Database(Capabilities):
    """One kind of database, of one version: subclass it to add a database."""

    def named_locks(self) -> NamedLocks:
        """Return how this database keeps named locks.

        Raises:
            UnsupportedDatabase: it has none.
        """
        raise UnsupportedDatabase(
            f"sa_jobqueue knows no named locks of {self}. A database of your own provides them by "
            "its named_locks(), which returns a sa_jobqueue.dialects.NamedLocks."
        )

    def serial_key_locks(self) -> SerialKeyLocks | None:
        """Return how a serial key, such as an account, is locked; None: it cannot be."""
        return None

    def examination(self) -> Examination:
        """Return how the doctor examines this database.

        Raises:
            UnsupportedDatabase: it has no examination.
        """
        raise UnsupportedDatabase(
            f"sa_jobqueue cannot read the plans of {self}. A database of your own provides that by "
            "its examination(), which returns a sa_jobqueue.dialects.Examination."
        )

    def schema_changes(self) -> SchemaChanges:
        """Return how tables in use are changed."""
        return SchemaChanges(self)
