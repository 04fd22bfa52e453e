"""Transactions of our own: begun fit for writing, run again after a transient error."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..dialects import is_transient
from ..transactions import committed

R = TypeVar("R")

TRIES = 10


def in_transaction(engine: Engine, work: Callable[[Session], R]) -> R:
    """Run `work` in a session, commit, and return what it returned.

    Raises:
        DBAPIError: an error of the engine that trying again did not mend.
    """
    for tries in range(1, TRIES):
        try:
            return committed(engine, work)
        except DBAPIError as error:
            if not is_transient(error):
                raise
        time.sleep(0.02 * 2**tries * random.uniform(0.5, 1.0))
    return committed(engine, work)
