"""What must hold for a queue: its order, the limits of its keys, its owners, and nothing lost."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Hashable, Iterator
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, TypeAlias

# Inner: only names say which owners can be dead, and these two know the names.
from sa_jobqueue.owners.alive import SEPARATOR, is_connection_owner

from .history import Entry, History, Row
from .row_rules import Found, Held, RowStory

#: Which claims are compared: those of one queue, or of one of its serial keys.
Group: TypeAlias = Hashable

#: Verbs after which a job is over.
_OVER = frozenset({"complete", "cancel", "cancel_claimed", "prune"})

#: The reason of a reap whose owner was known to be dead.
DEAD = "dead owner"


def judge_queues(
    history: History,
    stories: list[RowStory],
    *,
    drained: bool,
    unnoticed: timedelta,
    overtaken: timedelta | None,
) -> Iterator[Found]:
    """Find the faults of the queues."""
    claims = sorted(
        (held for story in stories for held in story.claims if held.sure),
        key=lambda held: history.when(held.claim),
    )
    if not history.clock_steps:  # a job is due by the database's clock
        there = _when_there(history, stories)
        yield from _order(claims, there, "claim order", _of_strict_queue)
        yield from _order(claims, there, "key order", _of_serial_key)
        if overtaken is not None:
            unsure = {held.claim.row for story in stories for held in story.claims if not held.sure}
            known = [held for held in claims if held.claim.row not in unsure]
            yield from _order(known, there, "place", _of_plain_queue, within=overtaken)
    yield from _limits(history, claims)
    yield from _dead_owners(history, claims, unnoticed)
    if drained:
        yield from _lost(stories)


# -- claim order -----------------------------------------------------------------


def _of_strict_queue(entry: Entry) -> Group:
    written = entry.record.written
    return (entry.record.table, entry.job.get("fence")) if written.get("strict") else None


def _of_plain_queue(entry: Entry) -> Group:
    written = entry.record.written
    plain = not written.get("strict") and not written.get("limits")
    return (entry.record.table, entry.job.get("fence")) if plain else None


def _of_serial_key(entry: Entry) -> Group:
    return next((group for limit, group in _limits_of(entry) if limit[2]), None)


def _when_there(history: History, stories: list[RowStory]) -> dict[Row, datetime]:
    """Return since when each job was there for every claim: its INSERT was committed."""
    return {
        story.row: entry.record.ended + history.skew
        for story in stories
        for entry in story.others
        if entry.verb in ("enqueue", "flush") and entry.sure and entry.record.ended is not None
    }


def _order(
    claims: list[Held],
    there: dict[Row, datetime],
    rule: str,
    group_of: Callable[[Entry], Group],
    *,
    within: timedelta = timedelta(0),
) -> Iterator[Found]:
    """No job is claimed for the first time before an earlier job that was there and due.

    What was claimed before has another order: a job that failed comes later. Later ones may
    overtake it until `within` before its claim: it stands before the place of others, or a
    claim that is rolled back later has locked it.
    """
    first = {held.claim.row: held.claim for held in reversed(claims)}
    groups: dict[Group, list[Entry]] = {}
    for claim in sorted(first.values(), key=lambda claim: claim.date):
        group = group_of(claim)
        if group is not None and "order" in claim.job:
            groups.setdefault(group, []).append(claim)
    for members in groups.values():
        yield from _order_of_group(members, there, rule, within)


def _order_of_group(
    claims: list[Entry], there: dict[Row, datetime], rule: str, within: timedelta
) -> Iterator[Found]:
    by_row = {claim.row: claim for claim in claims}
    known = [claim for claim in claims if claim.row in there]
    coming = sorted(((_ready(one, there[one.row]), _order_of(one)) for one in known), reverse=True)
    waiting: list[tuple[list[Any], Row]] = []  # a heap: what comes first in claim order is first
    done: set[Row] = set()
    for _, claimed in groupby(claims, lambda claim: id(claim.record)):
        batch = list(claimed)
        while coming and coming[-1][0] < batch[0].date:
            heapq.heappush(waiting, coming.pop()[1])
        done |= {claim.row for claim in batch}
        soon = batch[0].date + within
        while waiting and (waiting[0][1] in done or by_row[waiting[0][1]].date < soon):
            heapq.heappop(waiting)
        last = max(batch, key=_order_of)
        if waiting and waiting[0][0] < last.job["order"]:
            passed_over = by_row[waiting[0][1]]
            text = f"it was claimed before {passed_over.row[1]}, which comes first"
            yield rule, text, [last, passed_over]


def _order_of(claim: Entry) -> tuple[list[Any], Row]:
    return claim.job["order"], claim.row


def _ready(claim: Entry, there: datetime) -> datetime:
    due = claim.job.get("due")
    return there if due is None else max(there, datetime.fromisoformat(due))


# -- the limits of keys ------------------------------------------------------------


def _limits_of(entry: Entry) -> Iterator[tuple[Any, Group]]:
    """Yield each limit of a claim's queue with the claim's group, if it has a serial key."""
    limits = entry.record.written.get("limits", ())
    for limit, key in zip(limits, entry.job.get("keys", ()), strict=False):
        if None not in key:
            yield limit, (entry.record.table, entry.job.get("fence"), json.dumps([limit, key]))


def _limits(history: History, claims: list[Held]) -> Iterator[Found]:
    """Of each key no more jobs are claimed at a time than its limit allows."""
    live: dict[Group, list[Held]] = {}
    for held in claims:
        for (_, limit, _), group in _limits_of(held.claim):
            still = [other for other in live.get(group, ()) if _lives(history, other, held)]
            live[group] = [*still, held][-limit:]
            if len(still) >= limit:
                text = f"{len(still) + 1} jobs of a key are claimed, and {limit} may be"
                yield "key limit", text, [held.claim, *(other.claim for other in still)]


def _lives(history: History, held: Held, later: Held) -> bool:
    """Tell whether a claim had surely not ended when another was made."""
    return all(history.surely_before(later.claim.record, end.record) for end in held.endings)


# -- owners, and what was lost -------------------------------------------------------


def _dead_owners(history: History, claims: list[Held], unnoticed: timedelta) -> Iterator[Found]:
    """An owner that was dead for a reap never claims again, once it knows.

    A network that was cut hides the end of its lock's connection from it. It may claim until it
    is told, and then takes another name. If the network is silent, it may end before it is told.
    """
    seen = _owners_told_of_their_loss(history)
    last = {held.claim.owner or "": held.claim for held in claims}
    for held in claims:
        owner = held.claim.owner or ""
        if SEPARATOR not in owner or is_connection_owner(owner):
            continue
        for ending in held.sure_endings:
            dead = ending.record.written.get("error") == DEAD and owner not in seen
            goes_on = last[owner].record.time - ending.record.time > unnoticed
            if dead and goes_on and history.surely_before(ending.record, last[owner].record):
                seen.add(owner)
                text = "its owner was taken for dead, and claims again"
                yield "owner life", text, [held.claim, ending, last[owner]]


def _owners_told_of_their_loss(history: History) -> set[str]:
    """Name the owners that no longer claimed once they had been told that their lock was lost."""
    told: set[str] = set()
    claims_as: dict[str, str] = {}
    for record in history.records:
        if record.event == "after_lock_lost" and record.process in claims_as:
            told.add(claims_as[record.process])
        elif record.event == "after_claim":
            owners = [job["owner"] for job in record.written["jobs"] if job.get("owner")]
            claims_as.update((record.process, owner) for owner in owners)
            told.difference_update(owners)
    return told


def _lost(stories: list[RowStory]) -> Iterator[Found]:
    """At the end of a drained run no job waits, and none is claimed."""
    for story in stories:
        held = [*story.claims, *story.unmarked]
        ends = [ending for claim in held for ending in claim.endings]
        over = any(entry.verb in _OVER or entry.final for entry in story.others)
        if over or any(map(_is_over, ends)):
            continue
        inserted = [one for one in story.others if one.sure and one.verb != "reprioritize"]
        known = [claim.claim for claim in held if claim.sure]
        if known:
            text = "the queue was drained, and this claim has not finished its job"
            yield "lost job", text, [known[-1], *held[-1].endings[-1:]]
        elif inserted:
            yield "lost job", "the queue was drained, and nobody has claimed it", inserted


def _is_over(ending: Entry) -> bool:
    if ending.final is not None:
        return ending.final or ending.verb == "complete"  # complete: the last step of a workflow
    return ending.verb in _OVER or ending.verb == "fail"
