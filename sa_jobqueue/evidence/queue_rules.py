"""What must hold for a queue: its order, the limits of its keys, its owners, and nothing lost."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from ..owners.alive import SEPARATOR, is_connection_owner
from .fault import Fault
from .history import COMMITTED, Entry, History, Record, Row
from .row_rules import Held, RowStory

#: Which claims are compared: those of one queue, or of one of its serial keys.
Group: TypeAlias = Hashable

#: Verbs after which a job is over.
_OVER = frozenset({"complete", "cancel", "cancel_claimed", "prune"})

#: The reason of a reap whose owner was known to be dead.
DEAD = "dead owner"


def judge_queues(
    history: History, stories: Iterable[RowStory], *, drained: bool
) -> Iterator[Fault]:
    """Find the faults of the queues."""
    stories = list(stories)
    claims = sorted(
        (held for story in stories for held in story.claims if held.sure),
        key=lambda held: history.when(held.claim),
    )
    if not history.clock_steps:  # a job is due by the database's clock
        yield from _order(history, stories, claims, "claim order", _of_strict_queue)
        yield from _order(history, stories, claims, "key order", _of_serial_key)
    yield from _limits(history, claims)
    yield from _dead_owners(history, claims)
    if drained:
        yield from _lost(stories)


# -- claim order -----------------------------------------------------------------


@dataclass(frozen=True, order=True)
class _Waiting:
    """A job that waits for its first claim; the first in claim order is the least."""

    order: tuple[Any, ...]
    row: Row


def _of_strict_queue(entry: Entry) -> Group:
    written = entry.record.written
    return (entry.record.table, entry.job.get("fence")) if written.get("strict") else None


def _of_serial_key(entry: Entry) -> Group:
    for limit, key in _limits_of(entry):
        if limit[2]:
            return (entry.record.table, entry.job.get("fence"), json.dumps(limit), key)
    return None


def _order(
    history: History,
    stories: list[RowStory],
    claims: list[Held],
    rule: str,
    group_of: Callable[[Entry], Group],
) -> Iterator[Fault]:
    """No job is claimed for the first time before an earlier job that was there and due.

    What was claimed before has another order: a job that failed comes later.
    """
    first = {held.claim.row: held.claim for held in reversed(claims)}
    groups: dict[Group, list[Entry]] = {}
    for claim in sorted(first.values(), key=lambda claim: claim.date):
        group = group_of(claim)
        if group is not None and "order" in claim.job:
            groups.setdefault(group, []).append(claim)
    there = _when_there(history, stories)
    for members in groups.values():
        yield from _order_of_group(members, there, rule)


def _when_there(history: History, stories: list[RowStory]) -> dict[Row, datetime]:
    """Return since when each job was there for every claim: its INSERT was committed."""
    found = {}
    for story in stories:
        for entry in story.others:
            inserted = entry.verb in ("enqueue", "flush") and entry.sure
            if inserted and entry.record.ended is not None:
                found[story.row] = entry.record.ended + history.skew
    return found


def _order_of_group(claims: list[Entry], there: dict[Row, datetime], rule: str) -> Iterator[Fault]:
    by_row = {claim.row: claim for claim in claims}
    coming = sorted(
        (_ready(claim, there[claim.row]), _Waiting(tuple(claim.job["order"]), claim.row))
        for claim in claims
        if claim.row in there
    )
    coming.reverse()
    waiting: list[_Waiting] = []
    done: set[Row] = set()
    for batch in _batches(claims):
        while coming and coming[-1][0] < batch[0].date:
            heapq.heappush(waiting, coming.pop()[1])
        done |= {claim.row for claim in batch}
        while waiting and waiting[0].row in done:
            heapq.heappop(waiting)
        last = max(batch, key=lambda claim: tuple(claim.job["order"]))
        if waiting and waiting[0].order < tuple(last.job["order"]):
            passed_over = by_row[waiting[0].row]
            text = f"it was claimed before {passed_over.row[1]}, which comes first"
            yield Fault(rule, text, [last, passed_over])


def _ready(claim: Entry, there: datetime) -> datetime:
    due = claim.job.get("due")
    return there if due is None else max(there, datetime.fromisoformat(due))


def _batches(claims: list[Entry]) -> Iterator[list[Entry]]:
    """Divide claims into those of one call each; they are sorted by their time."""
    batch: list[Entry] = []
    for claim in claims:
        if batch and claim.record is not batch[0].record:
            yield batch
            batch = []
        batch.append(claim)
    if batch:
        yield batch


# -- the limits of keys ------------------------------------------------------------


def _limits_of(entry: Entry) -> Iterator[tuple[Any, str]]:
    """Yield each limit of a claim's queue with the claim's own serial key, if it has one."""
    limits = entry.record.written.get("limits", ())
    for limit, key in zip(limits, entry.job.get("keys", ()), strict=False):
        if None not in key:
            yield limit, json.dumps(key)


def _limits(history: History, claims: list[Held]) -> Iterator[Fault]:
    """Of each key no more jobs are claimed at a time than its limit allows."""
    live: dict[Group, list[Held]] = {}
    for held in claims:
        for limit, key in _limits_of(held.claim):
            group = (held.claim.record.table, held.claim.job.get("fence"), json.dumps(limit), key)
            still = [other for other in live.get(group, ()) if _lives(history, other, held)]
            live[group] = [*still, held][-limit[1] :]
            if len(still) >= limit[1]:
                text = f"{len(still) + 1} jobs of key {key} are claimed, and {limit[1]} may be"
                yield Fault("key limit", text, [held.claim, *(other.claim for other in still)])


def _lives(history: History, held: Held, later: Held) -> bool:
    """Tell whether a claim had surely not ended when another was made."""
    if not held.endings:
        return True
    return all(history.surely_before(later.claim.record, ending.record) for ending in held.endings)


# -- owners, and what was lost -------------------------------------------------------


def _dead_owners(history: History, claims: list[Held]) -> Iterator[Fault]:
    """An owner that was dead for a reap never claims again, once it knows.

    A network that was cut hides the end of its lock's connection from it. It may claim until it
    is told, and then takes another name.
    """
    seen = _owners_told_of_their_loss(history)
    last: dict[str, Held] = {}
    for held in claims:
        owner = held.claim.owner
        if owner is not None and SEPARATOR in owner and not is_connection_owner(owner):
            last[owner] = held
    for held in claims:
        for ending in held.sure_endings:
            owner = held.claim.owner or ""
            if ending.record.written.get("error") != DEAD or owner not in last or owner in seen:
                continue
            later = last[owner]
            if _claims_after(history, later.claim.record, ending.record):
                seen.add(owner)
                text = "its owner was taken for dead, and claims again"
                yield Fault("owner life", text, [held.claim, ending, later.claim])


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


def _claims_after(history: History, claim: Record, reap: Record) -> bool:
    return reap.end == COMMITTED and history.surely_before(reap, claim)


def _lost(stories: list[RowStory]) -> Iterator[Fault]:
    """At the end of a drained run no job waits, and none is claimed."""
    for story in stories:
        entries = [*story.others]
        if any(entry.verb in _OVER or entry.final for entry in entries):
            continue
        held = [*story.claims, *story.unmarked]
        if any(_is_over(one_end) for claim in held for one_end in claim.endings):
            continue
        inserted = [entry for entry in entries if entry.sure and entry.verb != "reprioritize"]
        known = [claim.claim for claim in held if claim.sure]
        if known:
            text = "the queue was drained, and this claim has not finished its job"
            yield Fault("lost job", text, [known[-1], *held[-1].endings[-1:]])
        elif inserted:
            yield Fault("lost job", "the queue was drained, and nobody has claimed it", inserted)


def _is_over(ending: Entry) -> bool:
    if ending.final is not None:
        return ending.final or ending.verb == "complete"  # complete: the last step of a workflow
    return ending.verb in _OVER or ending.verb == "fail"
