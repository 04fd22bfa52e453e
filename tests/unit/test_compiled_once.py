"""Statements that are built once are found by themselves.

The inner module is imported since only its key shows whether a statement is hashed again.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Column,
    Engine,
    Integer,
    MetaData,
    Select,
    Table,
    create_engine,
    literal_column,
    select,
    text,
)

from sa_jobqueue.sessions.writer import compiled_once


def engine_in_memory() -> Engine:
    return create_engine("sqlite://")


def test_a_statement_is_compiled_once_for_each_engine() -> None:
    statement: Select[Any] = select(literal_column("1"))
    compiled: list[int] = []
    engine = engine_in_memory()
    made = engine.dialect.statement_compiler

    def counting(*given: object, **named: object) -> object:
        compiled.append(1)
        return made(*given, **named)  # type: ignore[arg-type]  # as it was called

    engine.dialect.statement_compiler = counting  # type: ignore[assignment]  # it is called only
    with engine.connect() as connection:
        for _ in range(3):
            options = compiled_once(connection.dialect)
            assert connection.execute(statement, execution_options=options).scalar() == 1

    assert compiled == [1]


def test_a_table_in_another_schema_has_a_compiled_statement_of_its_own() -> None:
    engine = engine_in_memory()
    table = Table("job", MetaData(), Column("id", Integer))
    statement = select(table.c.id)
    with engine.connect() as connection:
        connection.execute(text("ATTACH ':memory:' AS other"))
        for schema in ("main", "other"):
            connection.execute(text(f"CREATE TABLE {schema}.job AS SELECT '{schema}' AS id"))
        options = compiled_once(connection.dialect)

        found = [
            connection.execute(
                statement, execution_options={**options, "schema_translate_map": names}
            ).scalar()
            for names in ({}, {None: "other"}, {}, {None: "main"})
        ]

    assert found == ["main", "other", "main", "main"]
