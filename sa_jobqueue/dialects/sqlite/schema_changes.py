"""SQLite: a change locks the whole database for a moment."""

from __future__ import annotations

from typing import ClassVar

from ..schema_changes import SchemaChanges


class SQLiteSchemaChanges(SchemaChanges):
    """How SQLite changes tables."""

    # Rows from before ADD COLUMN store no value: they read the default that the schema
    # has now.
    keeps_added_default: ClassVar[bool] = False
    alters_many: ClassVar[bool] = False
    builds_beside: ClassVar[bool] = False  # indexes cannot be renamed
    begins: ClassVar[tuple[str, ...]] = ("BEGIN IMMEDIATE",)
