"""A database user who may read and write the tables, or less, and nothing else."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool
from sqlalchemy.exc import DBAPIError

from tests.servers.server import is_denied
from tests.support import make_engine

#: What the user may do with the tables.
READ_AND_WRITE = "SELECT, INSERT, UPDATE, DELETE"


@contextmanager
def restricted_user(engine: Engine, privileges: str = READ_AND_WRITE) -> Iterator[Engine]:
    user = f"restricted_{secrets.token_hex(4)}"
    try:
        with administering(engine) as run:
            for statement in made_and_granted(engine, user, privileges):
                run(statement)
    except DBAPIError as error:
        if is_denied(error):
            pytest.skip("the URL given may not create users")
        raise
    theirs = make_engine(engine.url.set(username=user, password="secret"), poolclass=NullPool)
    try:
        yield theirs
    finally:
        theirs.dispose()
        with administering(engine) as run:
            for statement in dropped(engine, user):
                run(statement)


@contextmanager
def administering(engine: Engine) -> Iterator[Callable[[str], Any]]:
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        yield connection.exec_driver_sql


def made_and_granted(engine: Engine, user: str, privileges: str) -> list[str]:
    if engine.dialect.name == "postgresql":
        return [
            f"CREATE ROLE {user} LOGIN PASSWORD 'secret'",
            f"GRANT {privileges} ON ALL TABLES IN SCHEMA public TO {user}",
        ]
    return [
        f"CREATE USER {user} IDENTIFIED BY 'secret'",
        f"GRANT {privileges} ON {engine.url.database}.* TO {user}",
    ]


def dropped(engine: Engine, user: str) -> list[str]:
    owned = [f"DROP OWNED BY {user}"] if engine.dialect.name == "postgresql" else []
    return [*owned, f"DROP {'ROLE' if owned else 'USER'} {user}"]
