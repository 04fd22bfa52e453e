"""A turn: complete a batch and claim the next, in one transaction.

A turn of plain jobs looks once at the session for both. On PostgreSQL the statement of a claim
can carry a finish; see :mod:`sa_jobqueue.fence.carried`. Elsewhere a turn takes a statement for
the finish, and another for the claim. A turn that is not plain takes two verbs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from ..databases import is_undone
from ..fence.carried import carried
from ..fence.claim import Claim, FencedJobs, jobs_by_token
from ..fence.token import Change
from ..fence.write import write_in, write_missing
from ..model.mapping import word_of
from ..sessions.writer import AnyConnection, Writer, has_execute_hooks, session_of
from ..strategies import Request, Strategy, Taken
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
    mapping, spec = plan.mapping, plan.spec
    hooked = not isinstance(session, Connection) and has_execute_hooks(session_of(session))
    if hooked or spec.key_limit or spec.strict:
        return None
    parts = jobs_by_token(finished)
    if not parts or any(part.mapping is not mapping for part in parts):
        return None
    ((change, _),) = completions(parts, delete=delete, then=then)
    shows = change.values is not None and any(part.has_entities for part in parts)
    if shows and not shown and not mapping.listeners:  # nobody looks at the new values
        parts, shows = [replace(part, rows=True) for part in parts], False
    alone = len(parts) == 1 and not shows and mapping.groups is None
    carriable = alone and word_of(mapping, then) != spec.ready

    def take(writer: Writer, request: Request) -> Taken:
        strategy, taken = plan.strategy_for(writer, request), None
        if carriable and strategy.carries_finishes:
            taken = _take_in_one(plan, writer, strategy, request, change, parts[0])
        if taken is None:
            write_in(writer, change, parts)
            taken = plan.take(writer, request)
        return taken

    return plan.claim(session, owner=owner, limit=limit, rows=rows, options=options, take=take)


def _take_in_one(
    plan: ClaimPlan[Any],
    writer: Writer,
    strategy: Strategy,
    request: Request,
    change: Change,
    part: FencedJobs,
) -> Taken | None:
    """Complete jobs and take the next by one statement; None: nothing was done."""
    jobs = carried(writer, plan.mapping, change, part, request.owner)
    if jobs is None:
        return None
    try:
        taken = strategy.take(writer, replace(request, finish=jobs))
    except Exception as error:
        if not is_undone(error):
            raise
        return None  # others have some of the jobs: two statements tell which
    found = jobs.finished(writer, claimed=bool(taken.jobs))
    missed = len(found) < len(jobs.keys)
    write_missing(writer, change, part, found)
    if missed:  # a heartbeat has renewed claims meanwhile: their jobs are finished by now
        return plan.take(writer, request)
    return strategy.add_rest(writer, request, taken)
