"""Wake-ups: an idle worker learns of a new job at once, and does not only look now and then.

A worker is woken by other threads of its process, and by a watcher, which has a source: what its
database tells of changes, or a look for due jobs now and then. A source that is away or wrong
costs time only: the worker claims at least once in each `poll`, whatever it hears; in 10 seconds,
if that is longer, where the watcher looks in each `poll`.

======================  =====================================================
``watcher``             Wakeups: all that wakes one worker; the thread that waits for a source,
                        and how often it looks; the alarm: it pauses after a ring for nothing
``source``              what it waits for, such as PostgreSQL's LISTEN, and the plain read for due
                        jobs
======================  =====================================================

What the verbs do for it is in ``events/notes.py``.
"""

from .source import Lines
from .watcher import Wakeups

__all__ = ["Lines", "Wakeups"]
