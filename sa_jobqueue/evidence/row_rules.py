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

from .fault import Fault
from .history import Entry, History, Row

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


@dataclass
class RowStory:
    """A row: its claims in order, and what else was done to it.

    Attributes:
        claims: by the database's clock; a claim that wrote nothing is not among them.
        others: what was done without a fence, in the order in which it was noted.
        strays: what names a fence that no claim has.
    """

    row: Row
    claims: list[Held] = field(default_factory=list)
    unmarked: list[Held] = field(default_factory=list)
    others: list[Entry] = field(default_factory=list)
    strays: list[Entry] = field(default_factory=list)
    no_fence: list[Entry] = field(default_factory=list)


@dataclass(eq=False)
class _Reader:
    """Sorts the entries of a row to their claims.

    A claim is found by its owner and any of its owner_dates. A fence names several claims only
    where an owner claims a row again within one tick of the database's clock.
    """

    history: History
    story: RowStory
    by_fence: dict[tuple[str | None, str], list[Held]] = field(default_factory=dict)

    def add_claim(self, entry: Entry) -> None:
        if entry.unmarked:
            self.story.unmarked.append(Held(entry))
        elif not entry.dates:
            self.story.no_fence.append(entry)
        else:
            held = Held(entry)
            self.story.claims.append(held)
            self.by_fence.setdefault((entry.owner, entry.dates[0]), []).append(held)

    def add_to_claim(self, entry: Entry) -> None:
        held = self._unmarked(entry) if entry.unmarked else self._marked(entry)
        if held is None:
            self.story.strays.append(entry)
        elif entry.verb == "renew":
            held.renewals.append(entry)
        else:
            held.endings.append(entry)

    def _marked(self, entry: Entry) -> Held | None:
        found = [
            held
            for date in entry.dates
            for held in self.by_fence.get((entry.owner, date), ())
            if not self.history.surely_before(entry.record, held.claim.record)
        ]
        if not found:
            return None
        for date in entry.dates:  # a renewal's date names the claim from now on
            self.by_fence.setdefault((entry.owner, date), [found[-1]])
        return found[-1]

    def _unmarked(self, entry: Entry) -> Held | None:
        """Find the last claim of this process and owner that wrote nothing: it has no date."""
        for held in reversed(self.story.unmarked):
            claim, record = held.claim, held.claim.record
            ours = claim.owner == entry.owner and record.process == entry.record.process
            if ours and not self.history.surely_before(entry.record, record):
                return held
        return None


def read_row(history: History, row: Row, entries: list[Entry]) -> RowStory:
    """Sort the entries of a row to their claims."""
    story = RowStory(row)
    reader = _Reader(history, story)
    for entry in entries:
        if entry.verb == "claim":
            reader.add_claim(entry)
    for entry in entries:
        if entry.record.event in ("after_lost", "after_start"):
            continue
        if entry.verb == "renew" or entry.verb in ENDINGS:
            reader.add_to_claim(entry)
        elif entry.verb != "claim":
            story.others.append(entry)
    story.claims.sort(key=lambda held: history.when(held.claim))
    return story


# -- the rules -----------------------------------------------------------------


def judge_row(history: History, story: RowStory) -> Iterator[Fault]:
    """Find the faults of a row."""
    yield from _own_fences(story)
    yield from _known_fences(history, story)
    for held in (*story.claims, *story.unmarked):
        yield from _one_end(held)
        yield from _renewals(history, held)
    sure = [held for held in story.claims if held.sure]
    for before, after in pairwise(sure):
        yield from _ended_before(history, story, before, after)
        yield from _clock(history, before, after)
    yield from _attempts(history, story, sure)
    yield from _not_during(history, story)


def _own_fences(story: RowStory) -> Iterator[Fault]:
    for entry in story.no_fence:
        yield Fault("own fence", "a claim has recorded no owner_date", [entry])
    known: dict[tuple[str | None, str], Entry] = {}
    for claim in (held.claim for held in story.claims if held.sure):
        before = known.setdefault((claim.owner, claim.dates[0]), claim)
        if before is not claim:
            text = "two claims have one owner and owner_date"
            yield Fault("own fence", text, [before, claim])


def _known_fences(history: History, story: RowStory) -> Iterator[Fault]:
    for entry in story.strays:
        # A reap may return what was claimed before the history began, or by hand.
        if not entry.sure or (entry.verb == "reap" and not story.claims):
            continue
        lost = [
            claim
            for claim in history.rolled_back.get(story.row, ())
            if claim.verb == "claim" and set(claim.dates) & set(entry.dates)
        ]
        text = "behind the fence of a claim that was rolled back" if lost else "no claim has its"
        text = f"{entry.verb} {text}" if lost else f"{entry.verb} behind a fence: {text} fence"
        yield Fault("fenced finish", text, [*lost[:1], entry])


def _one_end(held: Held) -> Iterator[Fault]:
    """No claim is ended twice."""
    sure = held.sure_endings
    if len(sure) > 1:
        verbs = " and ".join(entry.verb for entry in sure[:2])
        yield Fault("fenced finish", f"one claim was ended by {verbs}", [held.claim, *sure[:2]])


def _renewals(history: History, held: Held) -> Iterator[Fault]:
    """A reap sees the last renewal that was committed before it."""
    for reap in held.sure_endings:
        overlooked = _overlooked(history, held, reap) if reap.verb == "reap" else None
        if overlooked is not None:
            text = "a reap did not see the renewal: it found an older owner_date"
            yield Fault("renewal", text, [held.claim, overlooked, reap])


def _overlooked(history: History, held: Held, reap: Entry) -> Entry | None:
    """Return the last renewal that a reap should have seen, if it saw an older one."""
    seen = reap.dates[-1]
    for renewal in reversed(held.renewals):
        if history.clock_steps and renewal.dates[-1] == seen:  # what comes before it is older
            return None
        later = history.surely_before(reap.record, renewal.record)
        older = history.clock_steps or seen < renewal.dates[-1]
        if renewal.sure and not later and older:
            return renewal
    return None


def _ended_before(history: History, story: RowStory, before: Held, after: Held) -> Iterator[Fault]:
    """A claim ends before the next one begins, and a finished job is not claimed again."""
    first, second = before.claim, after.claim
    if not before.endings:
        yield Fault("one fence", "two claims have it at once", [first, second])
        return
    again = [entry for entry in before.endings if not _finishes(entry, second)]
    if not again and not _reopened(history, story, before, after):
        text = "a finished job was claimed again"
        yield Fault("finished", text, [first, before.endings[0], second])
    late = [
        entry for entry in before.renewals if entry.sure and _renewed_after(history, entry, second)
    ]
    if late:
        text = "it was renewed after another had claimed it"
        yield Fault("fenced finish", text, [first, second, late[0]])


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


def _reopened(history: History, story: RowStory, before: Held, after: Held) -> bool:
    """Tell whether the row may have been made claimable anew between two claims."""
    first, second = before.claim.record, after.claim.record
    openings = [entry.record for entry in story.others if entry.verb in REOPENINGS]
    spans = [(record, record) for record in openings]
    if story.row[0] in history.openings:  # nobody knows which rows these took
        spans.append(history.openings[story.row[0]])
    return any(
        not history.surely_before(last, first) and not history.surely_before(second, begin)
        for begin, last in spans
    )


def _clock(history: History, before: Held, after: Held) -> Iterator[Fault]:
    """The times of claims grow as the database's clock does."""
    if history.clock_steps:
        return
    first = before.claim.record
    # `before` has the earlier owner_date: it was not noted after the end of the other.
    ended = [entry.record for entry in after.sure_endings if entry.record.file == first.file]
    earlier = before.claim.date < after.claim.date
    if earlier and any(end.line < first.line for end in ended):
        text = "a later claim has an earlier owner_date: the clock is not the database's"
        yield Fault("clock", text, [after.claim, after.sure_endings[0], before.claim])


def _attempts(history: History, story: RowStory, sure: list[Held]) -> Iterator[Fault]:
    """Each claim counts one attempt, a release takes it back, and a new start begins at one."""
    if story.unmarked:  # these count when they are finished, if they are
        return
    unsure = len(story.claims) - len(sure)
    enqueued = any(entry.verb in ("enqueue", "flush") for entry in story.others)
    if enqueued and sure and sure[0].claim.job.get("attempts", 1) > 1 + unsure:
        text = f"the first claim counts attempt {sure[0].claim.job['attempts']}"
        yield Fault("attempts", text, [sure[0].claim])
    for before, after in pairwise(sure):
        counted, was = after.claim.job.get("attempts"), before.claim.job.get("attempts")
        if counted is None or was is None or not before.endings:
            continue
        allowed = set(_allowed(history, story, before, after, was))
        allowed |= {number + more for number in allowed for more in range(unsure + 1)}
        if counted not in allowed:
            text = f"attempt {counted} follows attempt {was} and {before.endings[0].verb}"
            yield Fault("attempts", text, [before.claim, before.endings[0], after.claim])


def _allowed(
    history: History, story: RowStory, before: Held, after: Held, was: int
) -> Iterator[int]:
    for ending in before.sure_endings or before.endings:
        if ending.verb == "release":
            yield was
        elif ending.verb == "complete":
            yield 1  # the next step of a workflow begins anew
        else:
            yield was + 1
    if _reopened(history, story, before, after):
        yield 1


def _not_during(history: History, story: RowStory) -> Iterator[Fault]:
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
        if history.surely_before(second.record, end.record):
            text = "two claims hold it at once"
            yield Fault("one fence", text, [before.claim, second, end])
        elif end.verb == "complete" and not _reopened(history, story, before, after):
            text = "a finished job was claimed again"
            yield Fault("finished", text, [before.claim, end, second])
