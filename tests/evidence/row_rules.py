"""What must hold for each row: one fence at a time, and nothing without its fence.

Each claim has a fence of its own, its owner and owner_date. So the claims of a row have an order,
by the database's clock, and each later entry names its claim: no search is needed, and a row is
judged in one walk over its entries.

An entry whose end is unknown was committed in one world and not in the other. A rule is broken if
it is broken in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from .history import Entry, History, Row

#: A rule, what is wrong, and the entries that show it.
Found: TypeAlias = tuple[str, str, list[Entry]]

#: The verbs that end a claim.
ENDINGS = frozenset({"complete", "fail", "release", "cancel_claimed", "reap"})

#: The verbs after which a row is claimable as if it had never been tried; a key may be used again.
REOPENINGS = frozenset({"retry", "signal", "enqueue", "flush"})


@dataclass(eq=False)
class Held:
    """A claim of a row, with all that was done behind its fence."""

    claim: Entry
    renewals: list[Entry] = field(default_factory=list)
    endings: list[Entry] = field(default_factory=list)

    @property
    def sure(self) -> bool:
        """Whether the claim was committed: what was done behind it proves it, too."""
        return any(entry.sure for entry in (self.claim, *self.renewals, *self.endings))

    @property
    def sure_endings(self) -> list[Entry]:
        """The endings that were committed."""
        return [entry for entry in self.endings if entry.sure]


class RowStory:
    """A row: its claims in order, and what else was done to it.

    Attributes:
        claims: by the database's clock; a claim that wrote nothing is among unmarked.
        others: what was done without a fence, in the order in which it was noted.
        strays: what names a fence that no claim has.
    """

    def __init__(self, history: History, row: Row, entries: list[Entry]) -> None:
        self.history, self.row = history, row
        self.others: list[Entry] = []
        self.strays: list[Entry] = []
        held = [Held(entry) for entry in entries if entry.verb == "claim"]
        self.unmarked = [held for held in held if held.claim.unmarked]
        self.no_fence = [one.claim for one in held if not (one.claim.unmarked or one.claim.dates)]
        dated = [one for one in held if one.claim.dates and not one.claim.unmarked]
        self.claims = sorted(dated, key=lambda held: history.when(held.claim))
        # A fence names several claims only where an owner claims a row again within one tick.
        self._by_fence: dict[tuple[str | None, str], list[Held]] = {}
        for one in dated:
            self._by_fence.setdefault((one.claim.owner, one.claim.dates[0]), []).append(one)
        for entry in entries:
            if entry.record.event not in ("after_lost", "after_start") and entry.verb != "claim":
                self._add(entry)

    def _add(self, entry: Entry) -> None:
        if entry.verb != "renew" and entry.verb not in ENDINGS:
            self.others.append(entry)
        elif (held := self._claim_of(entry)) is None:
            self.strays.append(entry)
        else:
            (held.renewals if entry.verb == "renew" else held.endings).append(entry)

    def _claim_of(self, entry: Entry) -> Held | None:
        """Find a claim by its owner and any of its dates; the last of those that were before."""
        if entry.unmarked:
            named = [held for held in self.unmarked if _of_process(held.claim, entry)]
        else:
            fences = [(entry.owner, date) for date in entry.dates]
            named = [held for fence in fences for held in self._by_fence.get(fence, ())]
        before = self.history.surely_before
        found = [held for held in named if not before(entry.record, held.claim.record)]
        for date in entry.dates if found else ():  # a renewal's date names the claim from now on
            self._by_fence.setdefault((entry.owner, date), [found[-1]])
        return found[-1] if found else None

    def reopened(self, before: Held, after: Held) -> bool:
        """Tell whether the row may have been made claimable anew between two claims."""
        first, second, earlier = before.claim.record, after.claim.record, self.history.surely_before
        openings = [entry.record for entry in self.others if entry.verb in REOPENINGS]
        spans = [(record, record) for record in openings]
        if self.row[0] in self.history.openings:  # nobody knows which rows these took
            spans.append(self.history.openings[self.row[0]])
        return any(not earlier(last, first) and not earlier(second, begin) for begin, last in spans)


def _of_process(claim: Entry, entry: Entry) -> bool:
    return claim.owner == entry.owner and claim.record.process == entry.record.process


# -- the rules -----------------------------------------------------------------


def judge_row(story: RowStory) -> Iterator[Found]:
    """Find the faults of a row."""
    yield from _own_fences(story)
    yield from _known_fences(story)
    for held in (*story.claims, *story.unmarked):
        yield from _behind(story.history, held)
    sure = [held for held in story.claims if held.sure]
    for before, after in pairwise(sure):
        yield from _ended_before(story, before, after)
        if not story.history.clock_steps:
            yield from _clock(before, after)
    if not story.unmarked:  # these count when they are finished, if they are
        yield from _attempts(story, sure)
    yield from _not_during(story)


def _own_fences(story: RowStory) -> Iterator[Found]:
    for entry in story.no_fence:
        yield "own fence", "a claim has recorded no owner_date", [entry]
    known: dict[tuple[str | None, str], Entry] = {}
    for claim in (held.claim for held in story.claims if held.sure):
        before = known.setdefault((claim.owner, claim.dates[0]), claim)
        if before is not claim:
            yield "own fence", "two claims have one owner and owner_date", [before, claim]


def _known_fences(story: RowStory) -> Iterator[Found]:
    for entry in story.strays:
        # A reap may return what was claimed before the history began, or by hand.
        if entry.sure and (entry.verb != "reap" or story.claims):
            undone = story.history.rolled_back.get(story.row, ())
            lost = [claim for claim in undone if {*claim.dates} & {*entry.dates}]
            no_claim = "a claim that was rolled back" if lost else "no claim"
            yield "fenced finish", f"{entry.verb} has the fence of {no_claim}", [*lost[:1], entry]


def _behind(history: History, held: Held) -> Iterator[Found]:
    """No claim is ended twice, and a reap sees the last renewal that was committed before it."""
    if len(sure := held.sure_endings) > 1:
        text = f"one claim was ended by {sure[0].verb} and {sure[1].verb}"
        yield "fenced finish", text, [held.claim, *sure[:2]]
    for reap in (ending for ending in sure if ending.verb == "reap"):
        seen = reap.dates[-1]
        for renewal in reversed(held.renewals):
            if history.clock_steps and renewal.dates[-1] == seen:  # what comes before it is older
                break
            later = history.surely_before(reap.record, renewal.record)
            older = history.clock_steps or seen < renewal.dates[-1]
            if renewal.sure and older and not later:
                text = "a reap did not see the renewal: it found an older owner_date"
                yield "renewal", text, [held.claim, renewal, reap]
                break


def _ended_before(story: RowStory, before: Held, after: Held) -> Iterator[Found]:
    """A claim ends before the next one begins, and a finished job is not claimed again."""
    first, second = before.claim, after.claim
    if not before.endings:
        yield "one fence", "two claims have it at once", [first, second]
        return
    finished = all(_finishes(entry, second) for entry in before.endings)
    if finished and not story.reopened(before, after):
        yield "finished", "a finished job was claimed again", [first, before.endings[0], second]
    for late in before.renewals:
        if late.sure and _renewed_after(story.history, late, second):
            text = "it was renewed after another had claimed it"
            yield "fenced finish", text, [first, second, late]
            break


def _finishes(ending: Entry, next_claim: Entry) -> bool:
    """Tell whether a claim's end leaves nothing to claim for the step of the next claim."""
    if ending.final is not None:
        return ending.final
    # complete() of a workflow's step leads to another step, which claims by another status.
    same_step = ending.job.get("fence") == next_claim.job.get("fence")
    return ending.verb == "cancel_claimed" or (ending.verb == "complete" and same_step)


def _renewed_after(history: History, renewal: Entry, next_claim: Entry) -> bool:
    if history.clock_steps:
        return history.surely_before(next_claim.record, renewal.record)
    return renewal.record.at is not None and renewal.record.at > next_claim.date


def _clock(before: Held, after: Held) -> Iterator[Found]:
    """The times of claims grow as the database's clock does."""
    # `before` has the earlier owner_date: it was not noted after the end of the other.
    first, earlier = before.claim.record, before.claim.date < after.claim.date
    for end in after.sure_endings if earlier else ():
        if end.record.file == first.file and end.record.line < first.line:
            text = "a later claim has an earlier owner_date: the clock is not the database's"
            yield "clock", text, [after.claim, end, before.claim]
            return


def _attempts(story: RowStory, sure: list[Held]) -> Iterator[Found]:
    """Each claim counts one attempt, a release undoes it, and a new start begins at one."""
    unsure = len(story.claims) - len(sure)
    enqueued = any(entry.verb in ("enqueue", "flush") for entry in story.others)
    if enqueued and sure and sure[0].claim.job.get("attempts", 1) > 1 + unsure:
        text = f"the first claim counts attempt {sure[0].claim.job['attempts']}"
        yield "attempts", text, [sure[0].claim]
    for before, after in pairwise(sure):
        counted, was = after.claim.job.get("attempts"), before.claim.job.get("attempts")
        if counted is None or was is None or not before.endings:
            continue
        after_verb = {"release": was, "complete": 1}  # a workflow's next step begins at one
        ends = before.sure_endings or before.endings
        allowed = {after_verb.get(ending.verb, was + 1) for ending in ends}
        allowed |= {1} if story.reopened(before, after) else set()
        if not any(number <= counted <= number + unsure for number in allowed):
            text = f"attempt {counted} follows attempt {was} and {ends[0].verb}"
            yield "attempts", text, [before.claim, ends[0], after.claim]


def _not_during(story: RowStory) -> Iterator[Found]:
    """No claim is noted between another claim and its end, also where claims write nothing."""
    held = sorted(
        (held for held in (*story.claims, *story.unmarked) if held.sure),
        key=lambda held: (held.claim.record.time, held.claim.record.line),
    )
    for before, after in pairwise(held):
        marked = not (before.claim.unmarked or after.claim.unmarked)
        if marked or not before.sure_endings:  # judged by their fences, or free when it ended
            continue
        second, end = after.claim, before.sure_endings[0]
        if story.history.surely_before(second.record, end.record):
            yield "one fence", "two claims hold it at once", [before.claim, second, end]
        elif end.verb == "complete" and not story.reopened(before, after):
            yield "finished", "a finished job was claimed again", [before.claim, end, second]
