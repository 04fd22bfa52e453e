"""per_key: at most so many claimed jobs of each key, enforced by the database.

::

    JobQueue(Email, serial_by=Email.account_id)

Five steps: look which jobs are next and which of them their keys allow; lock those
keys, waiting for none; look again, in a newer snapshot; lock the rows; mark them.
Nobody else can claim a job of a locked key until this transaction has ended, and who
locks the key after us sees what we have claimed.

Without the second look two claimers that found two different heads of one key (a
sooner job came in between) would have one each; without the locks, two that look at
the same time.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeAlias

from sqlalchemy import Executable

from ..dialects import Database
from ..errors import UnsupportedDatabase
from ..model.keys import key_batches, key_values
from ..sessions.writer import Writer
from .base import OVERDRAW
from .key_statements import KeyStatements
from .limits import KeyLimit
from .spec import ClaimSpec, Request, Taken

#: How many jobs a claim looks at first, in claim order, and how many times more each
#: time when their keys were all taken.
WINDOW, GROWTH = 16, 8

#: A claim goes from key to key, not from job to job, where a key has so many jobs.
JOBS_OF_A_KEY = 4

#: How often a claim looks again: when a job was not its key's next any more, when its row
#: was locked, or when all keys that allow several were being claimed from.
TRIES = 8
PAUSE = timedelta(milliseconds=10)

Key: TypeAlias = "tuple[Any, ...]"


class PerKey(KeyStatements):
    """Lock keys, look again, lock and mark rows."""

    name = "per_key"

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        _check_database(database)
        super().__init__(spec, database)

    @staticmethod
    def refusal(database: Database) -> str | None:
        return None

    def take(self, writer: Writer, request: Request) -> Taken:
        _check_transaction(writer)
        writer.lock_writes(self.mapping.table)
        picking = Picking(self.spec.limits, request.limit)
        locked: list[Any] = []
        for _ in range(TRIES):
            picking.begin()
            self._lock_keys(writer, picking)
            kept = picking.keep(self._allowed(writer, picking.taken))
            locked, _ = self._lock(writer, request, kept)
            if locked or not self._is_worth_another(writer, picking):
                break
            picking.passed.update(kept)  # others have locked their rows, whatever for
        lost = max(0, picking.asked - len(locked))
        taken = self.mark_locked(writer, request, locked)
        return replace(taken, candidates=picking.asked, lost=lost)

    def statements(self) -> list[Executable]:
        steps = [self.first_step] if self.spec.steps else []
        lock = self.locks.statement()
        keys = [] if lock is None else [lock, self.allowed]
        return [*steps, self.draw, self.allowed, *keys, self.lock_candidates, self.mark]

    def _is_worth_another(self, writer: Writer, picking: Picking) -> bool:
        """Tell whether another look may find more; wait a moment where others are claiming."""
        if picking.taken:
            return True
        if picking.may_soon_allow:
            writer.database.pause(writer.connection, PAUSE * random.random())
        return picking.may_soon_allow

    def _lock_keys(self, writer: Writer, picking: Picking) -> None:
        """Lock as many keys as jobs are wanted, and no others, in claim order."""
        for found in self._found(writer, picking):
            waiting = deque(found)
            while picked := picking.pick(waiting):
                tokens = {token for one in picked for token in one.tokens if token is not None}
                had = self.locks.take(writer.connection, tokens) if tokens else set()
                picking.settle(picked, had)
            if picking.has_enough:
                return

    # -- which jobs are next --------------------------------------------

    def _found(self, writer: Writer, picking: Picking) -> Iterator[list[Candidate]]:
        """Yield jobs that their keys allow, in claim order, until all are looked at.

        At first those at the head of the queue. Where a few keys have most of them,
        a key that is taken is passed over with all its jobs.
        """
        size = max(WINDOW, picking.limit * OVERDRAW)
        known: set[Key] = set()
        seen: Counter[Any] = Counter()
        while True:
            drawn = self._drawn(writer, size)
            new = [one for one in drawn if one.key not in known]
            known.update(one.key for one in new)
            yield self._allowed(writer, self._first_of_keys(new, seen))
            if len(drawn) < size:
                return
            few_keys = len(seen) * JOBS_OF_A_KEY <= len(drawn)
            if few_keys and self.scans and not writer.hooked:  # hooks add criteria to jobs alone
                yield self._allowed(writer, self._heads(writer, picking.limit))
                return
            size *= GROWTH

    def _drawn(self, writer: Writer, size: int) -> list[Candidate]:
        return self.in_steps(
            writer, size, lambda **limits: self._candidates(writer, self.draw, limits)
        )

    def _heads(self, writer: Writer, limit: int) -> list[Candidate]:
        """Go from key to key by its index; read the first job of each, then sort those."""
        heads = [tuple(head) for head in self.bound(writer, "heads_of_keys")]
        if self.unkeyed is not None:
            heads += [tuple(one) for one in self.bound(writer, "unkeyed", {"claim_limit": limit})]
        ranked: list[Candidate] = []
        for batch in key_batches([head for head in heads if head[0] is not None]):
            ranked += self._candidates(writer, self.rank, {"claim_keys": key_values(batch)})
        return ranked

    def _candidates(self, writer: Writer, statement: Any, parameters: Any) -> list[Candidate]:
        width, limits = len(self.mapping.keys), len(self.spec.limits)
        return [
            Candidate(tuple(row[:width]), tuple(row[width : width + limits]), bool(row[-1]))
            for row in writer.rows(statement, parameters)
        ]

    def _first_of_keys(self, drawn: Sequence[Candidate], seen: Counter[Any]) -> list[Candidate]:
        """Leave out jobs behind as many others of their key as it allows.

        Not where several limits meet: those before may be kept from it by another one.
        """
        if self.scanned is None:
            return list(drawn)
        most = self.spec.limits[self.scanned].most
        first = []
        for one in drawn:
            token = one.tokens[self.scanned]
            # A job that was tried may be its key's next nonetheless.
            if token is None or one.tried or seen[token] < most:
                first.append(one)
            if token is not None:
                seen[token] += 1
        return first

    def _allowed(self, writer: Writer, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return those that are ready, and allowed by their keys, as it is committed now."""
        width = len(self.mapping.keys)
        claimed: dict[Key, tuple[int, ...]] = {}
        for batch in key_batches([one.key for one in candidates]):
            for row in self.bound(writer, "allowed", {"claim_keys": key_values(batch)}):
                claimed[tuple(row[:width])] = tuple(row[width:])
        return [replace(one, claimed=claimed[one.key]) for one in candidates if one.key in claimed]


@dataclass(frozen=True)
class Candidate:
    """A job that may be its keys' next.

    Attributes:
        key: its primary key.
        tokens: for each limit, what stands for the key; None: it has none.
        tried: whether it was claimed before.
        claimed: for each limit, how many jobs of the key are claimed.
    """

    key: Key
    tokens: tuple[Any, ...]
    tried: bool
    claimed: tuple[int, ...] = ()

    @property
    def places(self) -> list[tuple[int, Any]]:
        """Its tokens, each with the number of the limit."""
        return [(place, token) for place, token in enumerate(self.tokens) if token is not None]


@dataclass
class Picking:
    """Which candidates a claim takes, so that no key gets more than it allows.

    Attributes:
        taken: those whose keys are locked.
        busy: the keys that others have locked.
        passed: the primary keys of jobs that are not tried again.
        asked: how many candidates' keys were asked for.
    """

    limits: tuple[KeyLimit, ...]
    limit: int
    taken: list[Candidate] = field(default_factory=list)
    busy: set[tuple[int, Any]] = field(default_factory=set)
    passed: set[Key] = field(default_factory=set)
    asked: int = 0
    _counted: Counter[tuple[int, Any]] = field(default_factory=Counter)

    def begin(self) -> None:
        """Begin anew."""
        self.taken = []
        self.busy = set()
        self._counted = Counter()

    @property
    def has_enough(self) -> bool:
        """Whether as many are taken as are wanted."""
        return len(self.taken) >= self.limit

    @property
    def may_soon_allow(self) -> bool:
        """Whether a key that others are claiming from allows more than they may take."""
        return any(self.limits[place].most > 1 for place, _ in self.busy)

    def pick(self, waiting: deque[Candidate]) -> list[Candidate]:
        """Take as many as are still wanted out of those that wait."""
        had = {one.key for one in self.taken}  # a key's first job may be met twice
        picked: list[Candidate] = []
        while waiting and len(self.taken) + len(picked) < self.limit:
            one = waiting.popleft()
            if one.key not in had and self._fits(one):
                self._counted.update(one.places)
                picked.append(one)
        self.asked += len(picked)
        return picked

    def settle(self, picked: Sequence[Candidate], had: set[Any]) -> None:
        """Keep those all of whose keys were had."""
        for one in picked:
            busy = [place for place in one.places if place[1] not in had]
            if busy:
                self.busy.update(busy)
                self._counted.subtract(one.places)
            else:
                self.taken.append(one)

    def keep(self, allowed: Sequence[Candidate]) -> list[Key]:
        """Return the primary keys of those that still fit, by what is claimed now."""
        self._counted = Counter()
        kept = self.pick_all(allowed)
        return [one.key for one in kept]

    def pick_all(self, allowed: Sequence[Candidate]) -> list[Candidate]:
        """Pick candidates whose keys are locked."""
        kept = []
        for one in allowed:
            if self._fits(one):
                self._counted.update(one.places)
                kept.append(one)
        return kept

    def _fits(self, one: Candidate) -> bool:
        return one.key not in self.passed and all(
            place not in self.busy
            and one.claimed[place[0]] + self._counted[place] < self.limits[place[0]].most
            for place in one.places
        )


def _check_database(database: Database) -> None:
    locks = database.serial_key_locks()
    if locks is None or not (database.skip_locked or database.one_writer):
        raise UnsupportedDatabase(
            f"{database} cannot keep serial_by= and limit_by=: it has no locks of keys, or no "
            "SELECT .. FOR UPDATE SKIP LOCKED (MySQL 8.0.1, MariaDB 10.6); upgrade the server, "
            "or use strict_order=True"
        )


def _check_transaction(writer: Writer) -> None:
    if writer.in_autocommit:
        raise UnsupportedDatabase(
            "serial_by= and limit_by= lock keys until the claim's transaction ends, and an "
            "AUTOCOMMIT connection has none; use a session without AUTOCOMMIT"
        )
    if not writer.sees_commits:
        raise UnsupportedDatabase(
            "serial_by= and limit_by= look again at keys that they have locked, and an isolation "
            "level other than READ COMMITTED does not show what was committed meanwhile; begin "
            "the transaction as READ COMMITTED, as with "
            'create_engine(.., isolation_level="READ COMMITTED")'
        )
