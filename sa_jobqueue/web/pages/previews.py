"""Previews: which jobs an action will change. A preview changes nothing.

A button sends a form, and is answered by the address of its preview: so the browser's Back shows
the preview again.
"""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.responses import RedirectResponse, Response

from ...overview import count_failed, failed_jobs
from ...steering import key_text
from ..door import Problem, Visit, read_only
from ..reading import reading
from .queue import named_queue
from .verbs import ACTIONS, asked_keys, asked_priority, asked_states

#: The verb of the button for all failed jobs.
RETRY_FAILED = "retry_failed"

#: How many of all failed jobs a preview names.
NAMED = 10

#: The longest address of a preview. Some servers refuse longer ones.
LONGEST = 4_000


def go_to_preview(visit: Visit) -> Response:
    """Answer a form by the address of its preview; where that is too long, by the preview."""
    name, queue = named_queue(visit)
    verb = str(visit.form["verb"])
    query = [("verb", verb), ("show", str(visit.form.get("show", "")))]
    if verb != RETRY_FAILED:
        query += [("key", key_text(key)) for key in asked_keys(visit, queue)]
    if verb == "reprioritize":
        query.append(("priority", str(asked_priority(visit))))
    address = f"{visit.links('previews', name)}?{urlencode(query)}"
    if len(address) > LONGEST:
        return show_preview(visit)
    return RedirectResponse(address, status_code=303)


def show_preview(visit: Visit) -> Response:
    """Show what an action would do.

    Raises:
        Problem: there is no such action, or the visitor may not change anything.
    """
    if not visit.visitor.may_change:
        raise read_only()
    verb = str(visit.asked.get("verb", ""))
    if verb == RETRY_FAILED:
        return _preview_failed(visit)
    if verb not in ACTIONS:
        raise Problem(404, "Nothing is here", f"There is no action {verb!r}.")
    return _preview(visit, verb)


def _preview(visit: Visit, verb: str) -> Response:
    name, queue = named_queue(visit)
    keys, priority = asked_keys(visit, queue), asked_priority(visit)
    states = asked_states(visit, queue, keys)
    leaves = queue.statuses_left_by(verb)
    return visit.page(
        "preview",
        name=name,
        verb=verb,
        action=ACTIONS[verb],
        priority=priority if verb == "reprioritize" else None,
        states={key: states.get(key) for key in keys},
        changes=[key for key in keys if key in states and states[key].status in leaves],
        show=str(visit.asked.get("show", "")),
    )


def _preview_failed(visit: Visit) -> Response:
    """Show how many jobs have failed until the last failure, which the form will name."""
    name, queue = named_queue(visit)
    with reading(visit.site.engine) as session:
        first = failed_jobs(session, queue, limit=NAMED, complete=True)
        until = first[0].owner_date if first else None
        count = count_failed(session, queue, until=until) if until else 0
    return visit.page("preview_failed", name=name, first=first, until=until, count=count)
