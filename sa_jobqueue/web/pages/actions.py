"""Actions: what the buttons of a queue and of a job do, after a preview.

The answer to the button of a preview says what was changed: somebody else may have been first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import islice

from starlette.responses import RedirectResponse, Response

from ...control import pause, resume
from ...control.tables import tables_for
from ...dialects.clock import as_utc
from ...overview.schema import has_table
from ...steering import Key, keys_text, keys_without
from ..door import Problem, Visit
from ..reading import reading
from .previews import RETRY_FAILED, go_to_preview
from .queue import named_queue
from .verbs import ACTIONS, asked_keys, asked_states

log = logging.getLogger("sa_jobqueue.web")

#: How many failed jobs one request retries; the page offers to go on.
MOST = 10_000


def act(visit: Visit) -> Response:
    """Do what a button of a queue's page asks for, or go to its preview."""
    verb = str(visit.form.get("verb", ""))
    if verb in ACTIONS:
        return _confirmed(visit, verb) if "confirm" in visit.form else go_to_preview(visit)
    view = _OTHERS.get(verb)
    if view is None:
        raise Problem(400, "Nothing was done", f"There is no action {verb!r}.")
    return view(visit)


# -- ticked jobs --------------------------------------------------------------


def _confirmed(visit: Visit, verb: str) -> Response:
    name, queue = named_queue(visit)
    keys, action = asked_keys(visit, queue), ACTIONS[verb]
    changed = visit.site.steering(name).change(keys, action.verb(visit, queue))
    log_action(visit, verb, name, keys, changed)
    left = keys_without(keys, changed)
    states = asked_states(visit, queue, left) if left else {}
    return visit.page(
        "result",
        name=name,
        action=action,
        changed=changed,
        left={key: states.get(key) for key in left},
        show=str(visit.form.get("show", "")),
    )


# -- all failed jobs ------------------------------------------------------------


def _retry_failed(visit: Visit) -> Response:
    """Retry the jobs that the preview has counted: those that failed until a moment."""
    if "confirm" not in visit.form:
        return go_to_preview(visit)
    name, _ = named_queue(visit)
    until, count = _until(visit), _count(visit)
    changed: list[Key] = []
    try:
        for key in islice(visit.site.steering(name).retry_failed(until), MOST):
            changed.append(key)
    finally:  # what was changed before an error stays changed
        log_action(visit, "retry", name, changed, changed)
    return visit.page(
        "result_failed",
        name=name,
        changed=len(changed),
        left=max(count - len(changed), 0),
        more=len(changed) == MOST,
        until=until,
    )


def _until(visit: Visit) -> datetime:
    """Read when the newest job of the preview failed.

    Raises:
        Problem: the form says no time.
    """
    try:
        return as_utc(datetime.fromisoformat(str(visit.form.get("until", ""))))
    except (ValueError, OverflowError) as error:
        raise Problem(400, "Nothing was done", "The form names no preview.") from error


def _count(visit: Visit) -> int:
    """Read how many jobs the preview has counted."""
    text = str(visit.form.get("count", ""))
    return min(int(text), MOST) if text.isdecimal() and len(text) < 10 else 0


# -- pauses ---------------------------------------------------------------------


def _pause(visit: Visit) -> Response:
    return _change_pause(visit, "pause", pause)


def _resume(visit: Visit) -> Response:
    return _change_pause(visit, "resume", resume)


def _change_pause(visit: Visit, verb: str, change: Callable[..., bool]) -> Response:
    """Pause or resume; each undoes the other, so nobody is asked."""
    name, queue = named_queue(visit)
    tables = tables_for(None, queue.mapping)
    with reading(visit.site.engine) as session:
        if not has_table(session.connection(), tables.pauses):
            raise Problem(400, "Nothing was done", f"There is no table {tables.pauses.fullname}.")
    steering = visit.site.steering(name)
    changed = steering.run(lambda session: change(session, queue, tables=tables))
    log_action(visit, verb, name, (), [()] if changed else ())
    return RedirectResponse(visit.links.queue(name), status_code=303)


_OTHERS = {RETRY_FAILED: _retry_failed, "pause": _pause, "resume": _resume}


def log_action(
    visit: Visit, verb: str, queue: str, keys: Sequence[Key], changed: Iterable[Key]
) -> None:
    """Log who has done what, to which jobs."""
    count = len(list(changed))
    log.info(
        "%r: %s of %s: %s changed, of %r",
        visit.visitor.name,
        verb,
        queue,
        count,
        keys_text(keys) or "the queue itself",
        extra={
            "visitor": visit.visitor.name,
            "verb": verb,
            "queue": queue,
            "keys": [list(key) for key in keys],
            "changed": count,
        },
    )
