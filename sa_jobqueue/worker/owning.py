"""Under which name a worker claims: an Owner of its own, unless it is given one."""

from __future__ import annotations

import logging
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import LockLost, UnsupportedDatabase
from ..owners.owner import Owner
from .patience import Patience
from .threads import Waiting

log = logging.getLogger("sa_jobqueue.worker")


def default_owner() -> str:
    """Name this process: its host, its process id and something random."""
    return f"{process_label(40)}-{random.getrandbits(32):08x}"


def process_label(host: int) -> str:
    """Name this process by its host, so many characters of it, and its process id."""
    return f"{socket.gethostname().replace('~', '-')[:host]}-{os.getpid()}"


class Owning:
    """Who claims.

    Attributes:
        owner: the name, or the Owner, that claims now.
        is_ours_alone: nobody else claims under this name.
    """

    def __init__(
        self, owner: str | int | Owner | None, *, patience: Patience, waiting: Waiting
    ) -> None:
        self.owner: str | int | Owner = default_owner() if owner is None else owner
        self.is_ours_alone = owner is None
        self._patience = patience
        self._waiting = waiting

    @contextmanager
    def for_the_run(self) -> Iterator[None]:
        """Have an Owner of our own for the run, unless a name was given."""
        if not self.is_ours_alone:
            yield
            return
        plain, owner = self.owner, Owner(self._patience.engine, process_label(24))
        try:
            self._patience.patiently(owner.open)
        except UnsupportedDatabase as error:
            log.warning("if this worker dies, its claims wait for their lease: %s", error)
            yield
            return
        self.owner = owner
        try:
            yield
        finally:
            self.owner = plain
            owner.close()

    def look_after(self) -> None:
        """Have a lost lock noticed before a transaction begins.

        A new one takes connections, and the pool may have no second one.
        """
        owner = self.owner
        if not isinstance(owner, Owner):
            return
        try:
            self._patience.patiently(lambda: self._waiting.apart(lambda: owner.name))
        except LockLost as error:
            log.warning("%s", error)
