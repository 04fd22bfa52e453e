"""A turn: complete a batch and claim the next, in one transaction.

A turn of plain jobs looks once at the session for both. On PostgreSQL the statement of a claim
can carry a finish; see :mod:`sa_jobqueue.fence.carried`. Elsewhere a turn takes a statement for
the finish, and another for the claim. A turn that is not plain takes two verbs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection

from ..dialects import is_undone
from ..fence.carried import CarriedJobs, carried
from ..fence.claim import Claim, FencedJobs, jobs_by_token
from ..fence.token import Change
from ..fence.write import write_in, write_missing
from ..model.mapping import word_of
from ..sessions.writer import AnyConnection, Writer, has_execute_hooks, session_of, writing
from ..strategies import Request, Strategy
from .claim import ClaimPlan
from .finish import completions


class _Finish(NamedTuple):
    """The finish of a turn: one change to jobs of the class that is claimed.

    Attributes:
        carriable: the statement of a claim may do it.
    """

    change: Change
    parts: list[FencedJobs]
    carriable: bool


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
    """Complete jobs and claim the next, in one go.

    Args:
        finished, then, delete: as for complete().
        owner, limit, rows, options: as for a claim.
        shown: False: nobody looks at the finished entities any more.

    Returns:
        The claim, or None if this turn takes two verbs and nothing was done.

    Raises:
        ClaimLost: claims of `finished` were lost; nothing was claimed.
        LockLost: of an Owner; nothing was done.
    """
    if not _is_plain(plan, session):
        return None
    finish = _finish_of(plan, finished, then, delete, shown=shown)
    if finish is None:
        return None
    request = plan.request(owner, limit, rows)
    with writing(session, plan.mapping, rows=rows) as writer:
        strategy = plan.strategy_for(writer, request)
        jobs = None
        if finish.carriable and strategy.carries_finishes:
            (part,) = finish.parts
            jobs = carried(writer, plan.mapping, finish.change, part, request.owner)
        if jobs is not None:
            try:
                return _claimed_in_one(plan, writer, strategy, request, finish, jobs, options)
            except Exception as error:
                if not is_undone(error):
                    raise
            # It has undone itself: others have some of the jobs. Two statements tell which.
        write_in(writer, plan.mapping, finish.change, finish.parts)
        taken = plan.take(writer, strategy, request)
        return plan.claim_of(writer, strategy, request, taken, options)


def _claimed_in_one(
    plan: ClaimPlan[Any],
    writer: Writer,
    strategy: Strategy,
    request: Request,
    finish: _Finish,
    jobs: CarriedJobs,
    options: Sequence[Any],
) -> Claim[Any]:
    """Complete jobs and claim the next by one statement."""
    taken = strategy.take_after(writer, request, jobs)
    found = jobs.finished(writer, claimed=bool(taken.jobs))
    none_missed = len(found) == len(jobs.keys)
    (part,) = finish.parts
    write_missing(writer, plan.mapping, finish.change, part, found)
    if none_missed:
        taken = strategy.take_rest(writer, request, taken)
    else:
        # A heartbeat has renewed claims meanwhile: their jobs are finished by now.
        taken = plan.take(writer, strategy, request)
    return plan.claim_of(writer, strategy, request, taken, options)


def _finish_of(
    plan: ClaimPlan[Any], finished: Any, then: str, delete: bool | None, *, shown: bool
) -> _Finish | None:
    """Return the one change to jobs of the plan's class; None: there is none, or several."""
    parts = jobs_by_token(finished)
    if not parts or any(part.mapping is not plan.mapping for part in parts):
        return None
    changes = completions(parts, delete=delete, then=then)
    ((change, _),) = changes
    carriable = len(parts) == 1 and word_of(plan.mapping, then) != plan.spec.ready
    if change.values is not None and any(part.has_entities for part in parts):
        if shown or plan.mapping.listeners:  # they look at the new values
            carriable = False
        else:
            parts = [replace(part, rows=True) for part in parts]
    return _Finish(change, parts, carriable)


def _is_plain(plan: ClaimPlan[Any], session: AnyConnection) -> bool:
    """Tell whether nothing but the statements of the turn is involved."""
    if plan.spec.limits or plan.spec.strict:
        return False
    return isinstance(session, Connection) or not has_execute_hooks(session_of(session))
