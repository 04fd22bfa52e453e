"""What the tests of strict order share: a claimer in a thread, and ends of transactions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from tests.models import Email

#: How long a test watches a claim that should wait; a claim that does not is back in milliseconds.
A_WHILE = 0.25
EMAILS = JobQueue(Email, strict_order=True)


class Later:
    """A claim that is made in a thread, and may have to wait there."""

    def __init__(self, engine: Engine, make: Callable[[], Any]) -> None:
        self._asked = threading.Event()
        self._done = threading.Event()
        self._result: Any = None
        self._thread = threading.Thread(target=self._run, args=(engine, make), daemon=True)
        self._thread.start()
        assert self._asked.wait(30)

    def _run(self, engine: Engine, make: Callable[[], Any]) -> None:
        def ask(*args: Any) -> None:
            if threading.current_thread() is self._thread:
                self._asked.set()

        event.listen(engine, "before_cursor_execute", ask)
        try:
            self._result = make()
        except Exception as error:  # for the test's thread to read
            self._result = error
        finally:
            event.remove(engine, "before_cursor_execute", ask)
            self._done.set()

    @property
    def waits(self) -> bool:
        """Tell whether the claim still waits after a while."""
        return not self._done.wait(A_WHILE)

    def result(self) -> Any:
        """Wait for the claim, for as long as a lock is waited for."""
        assert self._done.wait(30)
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


def end_by_commit(session: Session) -> None:
    session.commit()


def end_by_rollback(session: Session) -> None:
    session.rollback()
