"""The verbs of control, awaited, for an AsyncSession.

::

    await pause(session, Email)
    await session.commit()

Each runs the verb of :mod:`sa_jobqueue.control` by ``AsyncSession.run_sync``. It is a module of its
own: who has no control tables does not load their code.
"""

from __future__ import annotations

from .. import control
from .sessions import awaited

__all__ = [
    "pause",
    "paused",
    "read_control",
    "register_worker",
    "request_stop",
    "resume",
    "unregister_worker",
    "update_worker",
    "workers",
]

pause = awaited(control.pause)
paused = awaited(control.paused)
read_control = awaited(control.read_control)
register_worker = awaited(control.register_worker)
request_stop = awaited(control.request_stop)
resume = awaited(control.resume)
unregister_worker = awaited(control.unregister_worker)
update_worker = awaited(control.update_worker)
workers = awaited(control.workers)
