"""A turn by one statement: complete a batch, and claim the next.

On PostgreSQL the statement of a claim can carry a finish; see :mod:`sa_jobqueue.fence.carried`.
A turn of plain jobs, whose claim is fenced by what it wrote, takes one statement there. All
other turns take a statement for the finish, and another for the claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from ..fence.carried import carried
from ..fence.change import Change
from ..fence.claim import Claim, FencedJobs, jobs_by_token
from ..fence.write import write_missing
from ..model.mapping import word_of
from ..sessions.hooks import has_execute_hooks
from ..sessions.writer import AnyConnection, session_of, writing
from .claim import ClaimPlan
from .finish import completions


def turn_in_one(
    plan: ClaimPlan[Any],
    session: AnyConnection,
    finished: Any,
    *,
    then: str,
    owner: object | None,
    limit: int,
    delete: bool | None = None,
    rows: bool = False,
    options: Sequence[Any] = (),
    shown: bool = True,
) -> Claim[Any] | None:
    """Complete jobs and claim the next, by one statement.

    Args:
        finished, then, delete: as for complete().
        owner, limit, rows, options: as for a claim.
        shown: False: nobody looks at the finished entities any more.

    Returns:
        The claim, or None if this turn takes two statements and nothing was done.

    Raises:
        ClaimLost: claims of `finished` were lost; nothing was claimed.
        LockLost: of an Owner; nothing was done.
    """
    done = _finish_of(plan, finished, then, delete, shown=shown)
    if done is None or not _is_plain(plan, session):
        return None
    change, part = done
    request = plan.request(owner, limit, rows)
    with writing(session, plan.mapping, rows=rows) as writer:
        strategy = plan.strategy_for(writer, request)
        jobs = None
        if strategy.carries_finishes:
            jobs = carried(writer, plan.mapping, change, part, request.owner)
        if jobs is None:
            return None
        taken = strategy.take_after(writer, request, jobs)
        found = jobs.finished(writer, claimed=bool(taken.jobs))
        none_missed = len(found) == len(jobs.keys)
        write_missing(writer, plan.mapping, change, part, found)
        if none_missed:
            return plan.claim_of(writer, strategy, request, taken, options)
    # A heartbeat has renewed claims meanwhile: their jobs are finished by now.
    return plan.claim(session, owner=owner, limit=limit, rows=rows, options=options)


def _finish_of(
    plan: ClaimPlan[Any], finished: Any, then: str, delete: bool | None, *, shown: bool
) -> tuple[Change, FencedJobs] | None:
    """Return the one change of the one part that a statement can finish; None: it cannot."""
    parts = jobs_by_token(finished)
    if len(parts) != 1 or parts[0].mapping is not plan.mapping:
        return None
    if word_of(plan.mapping, then) == plan.spec.ready:  # the claim must see these rows
        return None
    ((change, (part,)),) = (
        each for each in completions(parts, delete=delete, then=then) if each[1]
    )
    if change.values is not None and part.has_entities:
        if shown or plan.mapping.listeners:  # they look at the new values
            return None
        part = replace(part, rows=True)
    return change, part


def _is_plain(plan: ClaimPlan[Any], session: AnyConnection) -> bool:
    """Tell whether nothing but the statements of the turn is involved."""
    if plan.spec.limits or plan.spec.strict:
        return False
    return isinstance(session, Connection) or not has_execute_hooks(session_of(session))
