"""The owner of a worker's claims: an Owner of its own, unless the worker is given a name."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ..errors import LockLost, UnsupportedDatabase
from ..owners.owner import Owner
from ..process import process_name
from .transactions import Stopped, Transactions

log = logging.getLogger("sa_jobqueue.worker")


def default_owner() -> str:
    """Return a plain name for a worker: host, process id and a random part."""
    return f"{process_name(40)}-{random.getrandbits(32):08x}"


class OwnerName:
    """The name that a worker claims under.

    Attributes:
        owner: the name, or the Owner, that claims now.
    """

    def __init__(self, owner: str | int | Owner | None, transactions: Transactions) -> None:
        self.owner: str | int | Owner = default_owner() if owner is None else owner
        self._given = owner is not None
        self._transactions = transactions
        self._lost = False

    @contextmanager
    def for_the_run(self) -> Iterator[None]:
        """Hold an Owner of our own for the run, unless a name was given."""
        if self._given:
            yield
            return
        plain, owner = self.owner, Owner(self._transactions.engine, process_name(24))
        try:
            self._patiently(owner.open)
        except UnsupportedDatabase as error:
            log.warning(
                "if this worker dies, its claims are reaped only after their lease: %s", error
            )
        else:
            self.owner = owner
        try:
            yield
        finally:
            self.owner = plain
            self._transactions.runtime.run_blocking(owner.close)

    @property
    def current(self) -> str:
        """The name as it stands in a fence."""
        owner = self.owner
        if not isinstance(owner, Owner):
            return str(owner)
        try:
            return owner.name
        except LockLost as error:
            self.note_loss(error)
            return owner.name

    def note_loss(self, error: LockLost) -> None:
        """Note that the Owner has lost its lock; from now on the worker has another name."""
        log.warning("%s", error)
        self._lost = True

    def was_lost(self) -> bool:
        """Tell whether a lock was lost since the last call."""
        lost, self._lost = self._lost, False
        return lost

    @property
    def is_sure(self) -> bool:
        """Whether the lock is held, as far as is known without waiting; a plain name has none."""
        owner = self.owner
        return not isinstance(owner, Owner) or owner.sure

    def check_lock(self) -> None:
        """Notice a lost lock, and take a new one, before a transaction begins.

        A new lock needs a connection, and the pool may have no second connection for it.
        """
        if not self.is_sure:
            with suppress(Stopped):  # then nothing is claimed any more
                self._patiently(lambda: self.current)  # reading the name checks the lock

    def _patiently(self, work: Callable[[], object]) -> None:
        runtime = self._transactions.runtime
        self._transactions.patiently(lambda: runtime.run_blocking(work))
