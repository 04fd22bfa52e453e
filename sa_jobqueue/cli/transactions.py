"""Transactions of our own: begun fit for writing, run again after a transient error."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..dialects import database_of, is_transient

R = TypeVar("R")

TRIES = 10


def in_transaction(engine: Engine, work: Callable[[Session], R]) -> R:
    """Run `work` in a session, commit, and return what it returned.

    Raises:
        DBAPIError: an error of the engine that trying again did not mend.
    """
    for tries in range(1, TRIES):
        try:
            return _once(engine, work)
        except DBAPIError as error:
            if not is_transient(error):
                raise
        time.sleep(0.02 * 2**tries * random.uniform(0.5, 1.0))
    return _once(engine, work)


def _once(engine: Engine, work: Callable[[Session], R]) -> R:
    with Session(engine, expire_on_commit=False) as session:
        connection = session.connection()
        database_of(connection).begin_write(connection)
        result = work(session)
        session.commit()
        return result
