"""What goes wrong beside the verbs: workers die, strangers lock rows, answers are lost, time jumps.

Each fault is a rule. An Owner that died loses its claims at once, a plain name after the lease,
and an Owner that is alive never.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError, OperationalError

from sa_jobqueue import is_transient
from tests.contract.any_order.sessions_machine import SessionsMachine, Worker, places, workers
from tests.contract.worker.faults import LostAnswer

J = TypeVar("J")
H = TypeVar("H")

#: How the clock of each database is written, and what makes it some hours later.
CLOCKS = {
    "sqlite": (r"'now'", r"\g<0>, '{} hours'"),
    "postgresql": (r"\w+_timestamp\(\)", r"(\g<0> + interval '{} hours')"),
    "mysql": (r"UTC_TIMESTAMP\(6\)", r"(\g<0> + INTERVAL {} HOUR)"),
}
CLOCKS["mariadb"] = CLOCKS["mysql"]

#: Wait for the lock of a row as shortly as the server can.
HARDLY_WAIT = {
    "postgresql": "SET LOCAL lock_timeout = 50",
    "mysql": "SET innodb_lock_wait_timeout = 1",
}
HARDLY_WAIT["mariadb"] = HARDLY_WAIT["mysql"]


class FaultsMachine(SessionsMachine[J, H]):
    """The faults, and what the model knows of them.

    Attributes:
        hour: how often the database's clock has jumped, by an hour each time.
    """

    hour = 0

    def _fill(self) -> None:
        event.listen(self.engine, "before_cursor_execute", self._jump, retval=True)

    def _jump(self, _: Any, __: Any, statement: str, values: Any, *___: Any) -> tuple[str, Any]:
        clock, later = CLOCKS[self.engine.dialect.name]
        return re.sub(clock, later.format(self.hour), statement), values

    def teardown(self) -> None:
        if self.workers:
            event.remove(self.engine, "before_cursor_execute", self._jump)
        super().teardown()

    @rule()
    def let_an_hour_pass(self) -> None:
        self.hour += 1

    # -- a worker dies --------------------------------------------------

    @rule(worker=workers, place=places, commits=st.booleans())
    def kill(self, worker: int, place: int, commits: bool) -> None:
        """Drop a worker with what it has not committed; it comes back under a new name."""
        killed = self._turn_of(worker)
        self._in_hand(killed, place)
        if commits:
            self._commit(killed)

        killed.session.invalidate()
        killed.leave()
        self.workers[worker] = self._hire(worker)

        for number in (*killed.uncommitted, *killed.locked):  # wait for the server's rollback
            self.observer.get(self.tables[0], number, with_for_update=True)
        self.observer.rollback()
        self._reap_all(self.workers[worker])

    # -- a stranger locks a row -----------------------------------------

    @precondition(lambda self: self.engine.dialect.name != "sqlite")
    @rule(place=places, claimed=st.booleans())
    def lock(self, place: int, claimed: bool) -> None:
        self._let_write_without_wait()
        numbers = {*self._there(self.jobs)}
        if claimed:
            numbers &= {number for worker in self.workers for number in worker.hand}
        number = self._free_one_of(numbers, place)
        if number is not None:
            self.stranger.session.get(self.tables[0], number, with_for_update=True)
            self.stranger.locked.add(number)

    @precondition(lambda self: self.workers and self.stranger.locked)
    @rule()
    def let_go(self) -> None:
        self._roll_back(self.stranger)

    def _is_refused(self, worker: Worker[J, H], write: Callable[[], object]) -> None:
        """See that a write to the stranger's row gives up soon, and roll it back."""
        worker.session.execute(text(HARDLY_WAIT[self.engine.dialect.name]))
        with pytest.raises(DBAPIError) as refused:
            write()
        assert is_transient(refused.value)
        self._roll_back(worker)

    # -- the answer of a COMMIT is lost ---------------------------------

    @rule(worker=workers, place=places, committed=st.booleans())
    def lose_the_answer_of_a_commit(self, worker: int, place: int, committed: bool) -> None:
        asker = self._turn_of(worker)
        self._in_hand(asker, place)
        asker.session.connection()  # so that there is a COMMIT
        lost = LostAnswer(self.engine, 0, committed=committed)
        with lost, pytest.raises(OperationalError, match="gone"):
            asker.session.commit()
        asker.session.rollback()

        (self._has_committed if committed else self._has_rolled_back)(asker)
        asker.hand = self._claims_of(asker)
        asker.session.commit()

    # -- what only the subclass knows -----------------------------------

    def _reap_all(self, reaper: Worker[J, H]) -> None:
        """Reap what may be reaped now, and nothing else."""
        raise NotImplementedError

    def _claims_of(self, asker: Worker[J, H]) -> dict[int, H]:
        """Ask for the claims of a worker, and compare them with what was committed."""
        raise NotImplementedError
