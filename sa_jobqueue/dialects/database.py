"""A database as the rest of the library sees it: its capabilities, and the parts it provides.

Each part (named locks, serial key locks, examination, schema changes) is a class of its own. A
part takes :class:`~.capabilities.Capabilities` only, so imports run one way: capabilities, then
parts, then the database. Only the doctor and migrations load examination and schema changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import ColumnElement, Connection, Executable, Table, and_, case
from sqlalchemy.types import TypeDecorator, TypeEngine

from ..errors import UnsupportedDatabase
from .capabilities import Capabilities
from .named_locks import NamedLocks

if TYPE_CHECKING:
    from .examination import Examination
    from .schema_changes import SchemaChanges


class Database(Capabilities):
    """One kind of database, of one version: subclass it to add a database.

    Attributes:
        examined_by: the module and the class of its examination; None: it has none.
        changed_by: the module and the class of its schema changes.
    """

    examined_by: ClassVar[str | None] = None
    changed_by: ClassVar[str] = "schema_changes:SchemaChanges"

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
        if self.examined_by is None:
            raise UnsupportedDatabase(
                f"sa_jobqueue cannot read the plans of {self}. A database of your own provides "
                "that by its examination(), which returns a "
                "sa_jobqueue.dialects.examination.Examination."
            )
        examination: Examination = resolve_name(f"{__package__}.{self.examined_by}")(self)
        return examination

    def schema_changes(self) -> SchemaChanges:
        """Return how tables in use are changed."""
        changes: SchemaChanges = resolve_name(f"{__package__}.{self.changed_by}")(self)
        return changes


class SerialKeyLocks(ABC):
    """How one kind of database locks serial keys, each until its claimer's transaction ends.

    A serial key is the value of the columns of ``serial_by`` or ``limit_by``, such as an account.
    Many rows share it and none stands for it alone, so locking rows does not lock the key. Nobody
    waits for a lock.

    A key is known by a token, which the server computes from the columns: so its own idea of
    equal values decides.
    """

    @abstractmethod
    def token(self, table: Table, columns: Sequence[Any]) -> ColumnElement[Any]:
        """Return the token of these mapped columns as a column; NULL where one of them is NULL.

        Raises:
            UnsupportedDatabase: there is no token for values of such a type.
        """

    @abstractmethod
    def take(self, connection: Connection, tokens: Collection[Any]) -> set[Any]:
        """Lock keys until the transaction ends; return those that nobody else has locked."""

    @abstractmethod
    def statement(self) -> Executable | None:
        """Return an example of the statement that :meth:`take` runs; None: it runs none."""


def sorted_by_name(columns: Sequence[Any]) -> list[Any]:
    """Sort columns by name: (a, b) and (b, a) are the same key."""
    return sorted(columns, key=lambda column: str(column.expression.name))


def unless_null(columns: Sequence[Any], token: ColumnElement[Any]) -> ColumnElement[Any]:
    """Make a token NULL where one of the columns is NULL: such a row has no key."""
    nullable = [column for column in columns if column.expression.nullable]
    if not nullable:
        return token
    return case((and_(*(column.is_not(None) for column in nullable)), token))


def plain_type(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the type that a TypeDecorator decorates, or the type itself."""
    while isinstance(kind, TypeDecorator):
        kind = kind.impl_instance
    return kind
