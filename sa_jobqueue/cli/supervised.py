"""A child of ``work --processes N``: it works until its supervisor wants it to end, or is gone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from .last_deadline import own_process


class Supervision:
    """What joins a child to its supervisor.

    Args:
        pipe: it is closed when the child is to end.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._stop: Callable[[], object] = _end_at_once
        threading.Thread(target=self._wait, name="sa_jobqueue supervision", daemon=True).start()

    def begin_work(self, stop: Callable[[], object]) -> None:
        """Tell the supervisor that the worker runs; from now on `stop` is how it ends."""
        self._stop = stop
        with suppress(OSError):  # it is gone: the thread notices that, too
            self._pipe.send("works")

    def _wait(self) -> None:
        with suppress(EOFError, OSError):
            self._pipe.recv()
        self._stop()


def run_child(arguments: Sequence[str], pipe: Connection) -> None:
    """Run the command `work` in this process, and end with its exit code."""
    from . import cli  # which imports us

    own_process()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cli.main(["work", *arguments], prog_name="sa-jobqueue", obj=Supervision(pipe))


def _end_at_once() -> None:
    """End before anything was claimed; an import may take its time, or hang."""
    os._exit(0)
