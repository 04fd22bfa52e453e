"""per_key: at most so many claimed jobs of each serial key, enforced by the database.

::

    JobQueue(Email, serial_by=Email.account_id)

A claim has five steps: it looks which jobs are next and which of them their keys allow;
it locks those keys, waiting for none; it looks again, in a newer snapshot; it locks the
rows; it marks them. Nobody else can claim a job of a locked key until this transaction
has ended, and whoever locks the key after us sees what we have claimed.

Without the second look, two claimers that found two different heads of one key (since
a sooner job came in between) would claim both. Without the locks, two claimers that
look at the same time would both claim.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

from sqlalchemy import Executable

from ..dialects import Database
from ..dialects.database import SerialKeyLocks
from ..errors import UnsupportedDatabase
from ..model.keys import key_batches, key_values
from ..sessions.writer import Writer
from .candidates import OVERDRAW, ByCandidates
from .key_limits import Candidate, CandidatePicker, Key
from .key_statements import BEFORE, KeyStatements
from .spec import ClaimSpec, Request, Taken
from .strategy import kept

#: How many candidates a claim reads at first, in claim order, and by which factor it reads
#: more each time when all of their keys were taken.
WINDOW, GROWTH = 16, 8

#: A claim walks from key to key, not from job to job, where a key has this many jobs.
JOBS_OF_A_KEY = 4

#: How often a claim looks again: after a job was no longer its key's next, or after others
#: were claiming from all keys that allow several jobs.
TRIES = 8
PAUSE = timedelta(milliseconds=10)


class PerKey(ByCandidates):
    """Lock keys, look again, lock and mark rows."""

    name = "per_key"

    #: MySQL walked over done rows without its claim index.
    by_index = True

    def __init__(self, spec: ClaimSpec, database: Database, *, indexed: bool = True) -> None:
        self._locks = _key_locks(database)
        super().__init__(spec, database, indexed=indexed)
        self._keys = KeyStatements(self.ready, self._locks, indexed=indexed)

    @staticmethod
    def refusal(database: Database) -> str | None:
        # _key_locks() has checked, and its error tells more.
        return None

    def candidate_columns(self) -> Sequence[Any]:
        return self._keys.columns

    def take(self, writer: Writer, request: Request) -> Taken:
        _check_transaction(writer)
        writer.lock_writes(self.mapping.table)
        picker = CandidatePicker(self.spec.limits, request.limit)
        taken, tries = Taken([]), 0
        while tries < TRIES:
            picker.start()
            self._lock_keys(writer, picker)
            fitting = picker.still_fitting(self._allowed(writer, picker.taken))
            rest = replace(request, limit=picker.limit)
            locked, held = self.lock(writer, rest, fitting)
            if locked:
                part = self.mark(writer, request, locked)
                taken = Taken([*taken.jobs, *part.jobs], [*taken.dates, *part.dates])
                picker.limit -= len(locked)
            if held:
                # Others have locked these rows, for whatever reason: go on behind them.
                picker.skipped.update(fitting)
            elif locked or not self._may_find_more(writer, picker):
                break
            else:
                tries += 1
            if not picker.limit:
                break
        lost = max(0, picker.tried - len(taken.jobs))
        return replace(taken, candidates=picker.tried, lost=lost)

    def statements(self, *, from_head: bool = False) -> list[Executable]:
        lock, allowed = self._locks.statement(), self._keys.allowed
        locks = [] if lock is None else [lock, allowed]
        levels = self.ready.levels.statements()
        return [*levels, self.look(), allowed, *locks, self.lock_by_keys(), self.mark_by_keys()]

    def _may_find_more(self, writer: Writer, picker: CandidatePicker) -> bool:
        """Tell whether another look may find more; wait a moment where others are claiming."""
        if picker.taken:
            return True
        if picker.may_soon_allow:
            writer.database.pause(writer.connection, PAUSE * random.random())
        return picker.may_soon_allow

    def _lock_keys(self, writer: Writer, picker: CandidatePicker) -> None:
        """Lock as many keys as jobs are wanted, and no others, in claim order."""
        for found in self._found(writer, picker):
            waiting = deque(found)
            while picked := picker.pick(waiting):
                names = {name for job in picked for name in job.locks if name is not None}
                locked = self._locks.take(writer.connection, names) if names else set()
                picker.settle(picked, locked)
            if picker.has_enough:
                return

    # -- which jobs are next --------------------------------------------

    def _found(self, writer: Writer, picker: CandidatePicker) -> Iterator[list[Candidate]]:
        """Yield jobs that their keys allow, in claim order, until all are looked at.

        It begins with the jobs at the head of the queue. Where a few keys have most of
        them, it goes on from key to key: then a taken key is passed over with all its
        jobs. Else the database passes over the jobs whose keys are taken: an idle claim
        that read the jobs of 300,000 taken keys took 5 seconds and 200 MB.
        """
        size, look = max(WINDOW, picker.limit * OVERDRAW), self.look()
        known: set[Key] = set()
        seen: Counter[Any] = Counter()
        while True:
            drawn = self._candidates(self.draw(writer, size, look))
            new = [job for job in drawn if job.key not in known]
            known.update(job.key for job in new)
            yield self._allowed(writer, self._first_of_keys(new, seen))
            if len(drawn) < size:
                return
            few_keys = len(seen) * JOBS_OF_A_KEY <= len(drawn)
            # Hooks add criteria to jobs alone, and the walk reads keys.
            if few_keys and self._keys.walks_keys and not writer.hooked:
                yield from self._from_key_to_key(writer, picker)
                return
            size, look = size * GROWTH, self._look_for_free_keys()

    @kept
    def _look_for_free_keys(self) -> Any:
        """Read the next candidates, without those whose keys are taken."""
        return self.look().where(*self._keys.of_free_keys)

    def _from_key_to_key(
        self, writer: Writer, picker: CandidatePicker
    ) -> Iterator[list[Candidate]]:
        """Yield the first job of each key, then the second, while keys allow one more."""
        for before in count():
            jobs = self._allowed(writer, self._of_each_key(writer, picker.limit, before))
            yield jobs
            if self._keys.most == 1 or not any(map(picker.has_room, jobs)):
                return

    def _of_each_key(self, writer: Writer, limit: int, before: int) -> list[Candidate]:
        """Walk from key to key by the index; read one job of each, in claim order.

        Args:
            before: how many jobs of its key come before that job.
        """
        heads = [tuple(head) for head in writer.rows(self._keys.heads_of_keys, {BEFORE: before})]
        if not before and self._keys.unkeyed is not None:
            unkeyed = writer.rows(self._keys.unkeyed, {"sa_jobqueue_limit": limit})
            heads += [tuple(key) for key in unkeyed]
        ranked: list[Candidate] = []
        for batch in key_batches([head for head in heads if head[0] is not None]):
            keys = {"sa_jobqueue_keys": key_values(batch)}
            ranked += self._candidates(writer.rows(self._keys.rank, keys))
        return ranked

    def _candidates(self, rows: Iterable[Any]) -> list[Candidate]:
        width, limits = len(self.mapping.keys), len(self.spec.limits)
        return [
            Candidate(tuple(row[:width]), tuple(row[width : width + limits]), bool(row[-1]))
            for row in rows
        ]

    def _first_of_keys(self, drawn: Sequence[Candidate], seen: Counter[Any]) -> list[Candidate]:
        """Leave out jobs behind as many others of their key as it allows.

        Where several limits meet, and none is serial, leave out nothing: another limit may
        keep the jobs before back.
        """
        if self._keys.walked is None:
            return list(drawn)
        first = []
        for job in drawn:
            name = job.locks[self._keys.walked]
            # A job that was tried may be its key's next all the same.
            if name is None or job.tried or seen[name] < self._keys.most:
                first.append(job)
            if name is not None:
                seen[name] += 1
        return first

    def _allowed(self, writer: Writer, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates that are ready, and allowed by their keys, as committed now."""
        width = len(self.mapping.keys)
        claimed: dict[Key, tuple[int, ...]] = {}
        for batch in key_batches([job.key for job in candidates]):
            for row in writer.rows(self._keys.allowed, {"sa_jobqueue_keys": key_values(batch)}):
                claimed[tuple(row[:width])] = tuple(row[width:])
        return [replace(job, claimed=claimed[job.key]) for job in candidates if job.key in claimed]


def _key_locks(database: Database) -> SerialKeyLocks:
    """Return how a database locks keys.

    Raises:
        UnsupportedDatabase: it cannot keep limits of keys.
    """
    locks = database.serial_key_locks()
    if locks is None or not (database.skip_locked or database.one_writer):
        raise UnsupportedDatabase(
            f"{database} cannot keep serial_by= and limit_by=: it cannot lock keys, or has no "
            "SELECT .. FOR UPDATE SKIP LOCKED (MySQL 8.0.1, MariaDB 10.6). Upgrade the server, "
            "or use strict_order=True"
        )
    return locks


def _check_transaction(writer: Writer) -> None:
    if writer.in_autocommit:
        raise UnsupportedDatabase(
            "serial_by= and limit_by= lock keys until the claim's transaction ends, and an "
            "AUTOCOMMIT connection has no transaction: use a session without AUTOCOMMIT"
        )
    if not writer.sees_commits:
        raise UnsupportedDatabase(
            "serial_by= and limit_by= must see what was committed while they waited for a key, "
            "and an isolation level other than READ COMMITTED hides that. Begin the transaction "
            "as READ COMMITTED, as with "
            'create_engine(.., isolation_level="READ COMMITTED")'
        )
