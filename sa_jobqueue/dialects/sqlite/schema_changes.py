"""SQLite: a change has the whole database to itself, for a moment."""

from __future__ import annotations

from typing import ClassVar

from ..schema_changes import SchemaChanges


class SQLiteSchemaChanges(SchemaChanges):
    """The changes of SQLite."""

    # Rows from before ADD COLUMN have no value for it: they read the default that the
    # schema names now.
    keeps_added_default: ClassVar[bool] = False
    alters_many: ClassVar[bool] = False
    begins: ClassVar[tuple[str, ...]] = ("BEGIN IMMEDIATE",)
