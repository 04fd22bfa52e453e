"""The library with one promise broken, and for each a driver that shows it to the checker.

A driver steps two sessions by turns, so it shows the fault each time. It is run on the sound
library too, where the checker must find nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import (
    ColumnElement,
    String,
    and_,
    bindparam,
    cast,
    func,
    literal,
    literal_column,
    select,
    true,
)

from sa_jobqueue import (
    ClaimLost,
    JobQueue,
    Owner,
    advisory_session,
    complete,
    fail,
    reap,
    release,
    renew,
)
from sa_jobqueue.dialects import database_of_dialect, dialect_of
from sa_jobqueue.dialects.clock import EPOCH
from sa_jobqueue.fence import statements as fence_statements
from sa_jobqueue.fence.statements import keys_are
from sa_jobqueue.model import transitions
from sa_jobqueue.model.keys import key_is_in
from sa_jobqueue.model.status import status_is
from sa_jobqueue.model.transitions import OWNER, claimed, reaped
from sa_jobqueue.owners.alive import SEPARATOR, OwnerState
from sa_jobqueue.strategies.advisory import Advisory
from sa_jobqueue.strategies.parts.mark import Mark
from sa_jobqueue.strategies.parts.ready_rows import ReadyRows
from sa_jobqueue.strategies.per_key import PerKey
from sa_jobqueue.verbs import finish
from sa_jobqueue.verbs import reap as reap_
from sa_jobqueue.verbs.claim import ClaimPlan
from tests.contract.serial.keyed import Mail
from tests.evidence.bench import ALL, Bench, committed, tried
from tests.models import Email, Task
from tests.support import SERVERS, until

Patch = pytest.MonkeyPatch
EVERYWHERE = ("sqlite", *SERVERS)
RETURNING = ("sqlite", "postgresql")
POSTGRESQL = ("postgresql",)


@dataclass(frozen=True)
class Mutant:
    """A broken library.

    Attributes:
        name: what is broken.
        rule: by which rule the checker finds it.
        breaks: breaks it.
        drive: shows it.
        databases: where.
        drained: whether the driver leaves nothing to do.
    """

    name: str
    rule: str
    breaks: Callable[[Patch], None]
    drive: Callable[[Bench], None]
    databases: tuple[str, ...] = EVERYWHERE
    drained: bool = False


# -- fences -----------------------------------------------------------------------


def without_fence(patch: Patch) -> None:
    patch.setattr(fence_statements, "is_ours", keys_are)


def without_date(patch: Patch) -> None:
    def fence(mapping: Any, database: Any, kind: Any) -> ColumnElement[bool]:
        owner, status = mapping.column("owner"), mapping.column("status")
        same = owner == bindparam(OWNER, type_=owner.type)
        return and_(keys_are(mapping, database, kind), status_is(status, kind.status), same)

    patch.setattr(fence_statements, "is_ours", fence)


def finish_by_namesake(bench: Bench) -> None:
    finish_after_a_reap(bench, "a")


def finish_after_a_reap(bench: Bench, second: str = "b") -> None:
    queue, slow, quick = JobQueue(Task), bench.session(), bench.session()
    bench.add(Task(name="a"))
    old = committed(slow, queue.claim, owner="a")
    bench.take_all_back(Task)
    committed(quick, queue.claim, owner=second)
    tried(slow, complete, old)


def same_date(patch: Patch) -> None:
    def values(mark: Mark, owner_date: Any = None) -> Any:
        date = literal(EPOCH, mark.mapping.column("owner_date").type)
        return claimed(mark.mapping, mark.spec.during, date)

    patch.setattr(Mark, "values", values)


def claim_twice(bench: Bench) -> None:
    queue, session = JobQueue(Task), bench.session()
    bench.add(Task(name="a"))
    committed(session, queue.claim, owner="a")
    bench.take_all_back(Task)
    committed(session, queue.claim, owner="a")


# -- claims ------------------------------------------------------------------------


def without_status(patch: Patch) -> None:
    def any_status(ready: ReadyRows) -> ColumnElement[bool]:
        return ready.mapping.attribute("status").is_not(None)

    patch.setattr(ReadyRows, "has_status", property(any_status))
    patch.setattr(ReadyRows, "found_by", property(any_status))
    patch.setattr(ReadyRows, "_status_again", lambda ready: [])
    patch.setattr(Mark, "is_ready", property(lambda mark: true()))


def two_claims(bench: Bench) -> None:
    queue = JobQueue(Email)
    bench.add(Email(recipient="a"))
    for owner in "ab":
        committed(bench.session(), queue.claim, owner=owner)


def without_locks(patch: Patch) -> None:
    # The proof of the first held claim would refuse the database.
    patch.setattr("sa_jobqueue.strategies.held.prove_locks", lambda *of_claim: None)
    patch.setattr(ReadyRows, "locked", lambda ready, statement, **how: statement)


def two_held_claims(bench: Bench) -> None:
    queue, first, second = JobQueue(Email, strategy="held"), bench.session(), bench.session()
    bench.add(Email(recipient="a"))
    claims = [(first, queue.claim(first, owner="a")), (second, queue.claim(second, owner="b"))]
    for session, claim in claims:
        with suppress(ClaimLost):  # whose commit keeps the rest of the batch
            complete(session, claim)
        session.commit()


def no_post_check(patch: Patch) -> None:
    def select_locked(strategy: Advisory, *columns: Any) -> Any:
        return select(*columns).where(strategy.ready.key_is_in("sa_jobqueue_keys"))

    patch.setattr(Advisory, "_select_locked", select_locked)


#: The number of the lock at which a claim waits, between its snapshot and its first row lock.
GATE = 4711


def claim_late(bench: Bench) -> None:
    """Finish a job after another claim's snapshot, and before that claim locks the job."""
    bench.add(Email(recipient="a"))
    at_gate = cast(func.pg_advisory_xact_lock_shared(GATE), String).is_not(None)
    first, second = (JobQueue(Email, *where, strategy="advisory") for where in ((), (at_gate,)))

    def wait() -> None:
        with advisory_session(bench.engine) as late:
            committed(late, second.claim, owner="b")

    with advisory_session(bench.engine) as session, bench.engine.connect() as gate:
        claim = committed(session, first.claim, owner="a")
        gate.execute(select(func.pg_advisory_lock(GATE)))
        thread = Thread(target=wait)
        thread.start()
        until(lambda: gate.exec_driver_sql(WAITING_AT_LOCKS).scalar())
        tried(session, complete, claim)
        gate.execute(select(func.pg_advisory_unlock(GATE)))
        thread.join()


#: In this database: another process of the tests may wait at the same number in its own.
WAITING_AT_LOCKS = f"""\
SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
WHERE NOT granted AND objid = {GATE} AND datname = current_database()"""


def client_clock(patch: Patch) -> None:
    ahead = [timedelta(hours=1), timedelta(0)]  # the first claimer's clock, and the second's

    def values(mark: Mark, owner_date: Any = None) -> Any:
        time = literal(datetime.now(UTC) + ahead.pop(0), mark.mapping.column("owner_date").type)
        return claimed(mark.mapping, mark.spec.during, time)

    patch.setattr(Mark, "values", values)


def release_twice(bench: Bench) -> None:
    bench.add(Email(recipient="a"))
    for owner in "ab":
        queue, session = JobQueue(Email), bench.session()
        tried(session, release, committed(session, queue.claim, owner=owner))


def marks_more(patch: Patch) -> None:
    parts = ClaimPlan._parts

    def fewer(plan: Any, request: Any, taken: Any) -> Any:
        less = replace(taken, jobs=list(taken.jobs)[:-1], dates=list(taken.dates)[:-1])
        return parts(plan, request, less if len(taken.jobs) > 1 else taken)

    patch.setattr(ClaimPlan, "_parts", fewer)


def drain(bench: Bench) -> None:
    queue, session = JobQueue(Email), bench.session()
    bench.add(*(Email(recipient=recipient) for recipient in "abc"))
    while claim := committed(session, queue.claim, owner="w", limit=2):
        tried(session, complete, claim)


# -- reaps and renewals --------------------------------------------------------------


def life_is_ignored(patch: Patch) -> None:
    def dead(connection: Any, names: list[str]) -> dict[str, OwnerState]:
        states = (OwnerState.UNKNOWN, OwnerState.DEAD)
        return {name: states[SEPARATOR in name] for name in names}

    patch.setattr(reap_, "owner_states", dead)


def reap_beside_owner(bench: Bench) -> None:
    queue, session, other = JobQueue(Email), bench.session(), bench.session()
    bench.add(Email(recipient="a"), Email(recipient="b"))
    with Owner(bench.engine) as owner:
        committed(session, queue.claim, owner=owner)
        reap(other, Email)
        other.commit()
        committed(session, queue.claim, owner=owner)


def renews_no_date(patch: Patch) -> None:
    def same(row: Any) -> Any:
        date = row.mapping.column("owner_date")
        return {date: date}

    patch.setattr(finish, "renewed", same)


def renew_and_reap(bench: Bench) -> None:
    queue, session = JobQueue(Email), bench.session()
    bench.add(Email(recipient="a"))
    claim = committed(session, queue.claim, owner="w")
    tried(session, renew, claim)
    bench.take_all_back(Email)


def looks_once(patch: Patch) -> None:
    locking = reap_._Reaper._locking

    class Careless(reap_._Reaper):
        _claimed: Any = ()

    def by_key_alone(reaper: Any, rule: Any) -> Any:
        return locking(Careless(reaper.writer, reaper.spec), replace(rule, criteria=()))

    def update(reaper: Any, rule: Any, *, failed: bool) -> Any:
        mapping = reaper.mapping
        named = key_is_in(mapping, reap_._KEYS)
        values = reaped(mapping, reaper.spec.ready, rule.reason, failed=failed)
        changed = reaper.writer.database.update_by_key(mapping.table, mapping.keys).where(named)
        return changed.ordered_values(*values.items())

    patch.setattr(reap_._Reaper, "_locking", by_key_alone)
    patch.setattr(reap_._Reaper, "_update", update)


def finish_in_reap(bench: Bench) -> None:
    """Finish a job between the reap's plain read, which proposes rows, and its locking read."""
    queue, session, reaper = JobQueue(Email), bench.session(), bench.session()
    bench.add(Email(recipient="a"))
    claim = committed(session, queue.claim, owner="w")
    take_back = reap_._Reaper._take_back

    def finished_first(self: Any, rule: Any, keys: Any) -> Any:
        tried(session, complete, claim)
        return take_back(self, rule, keys)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reap_._Reaper, "_take_back", finished_first)
        reap(reaper, Email, max_runtime=ALL)
        reaper.commit()


# -- what a finish writes --------------------------------------------------------------


def fail_forgets_attempts(patch: Patch) -> None:
    failed = transitions.failed

    def forgetful(ready: str, *, delayed: bool) -> Any:
        values = failed(ready, delayed=delayed)
        return lambda row: {**values(row), row.mapping.column("attempts"): literal_column("0")}

    patch.setattr(finish, "failed", forgetful)


def release_counts(patch: Patch) -> None:
    released = transitions.released

    def counting(ready: str) -> Any:
        values = released(ready)

        def without_attempts(row: Any) -> Any:
            attempts = row.mapping.column("attempts")
            return {key: value for key, value in values(row).items() if key is not attempts}

        return without_attempts

    patch.setattr(finish, "released", counting)


def try_again(session: Any, jobs: Any) -> None:
    fail(session, jobs, retry_in=timedelta(0))


def claim_after(verb: Callable[..., None]) -> Callable[[Bench], None]:
    def drive(bench: Bench) -> None:
        queue, session = JobQueue(Task), bench.session()
        bench.add(Task(name="a"))
        tried(session, verb, committed(session, queue.claim, owner="w"))
        committed(session, queue.claim, owner="w")

    return drive


def no_completion(patch: Patch) -> None:
    def values(row: Any) -> Any:
        owner = row.mapping.column("owner")
        return {owner: owner}

    patch.setattr(finish, "completed", lambda then: values)
    patch.setattr(finish, "_completion", finish._completion.__wrapped__)


def complete_and_reap(bench: Bench) -> None:
    queue, session = JobQueue(Email), bench.session()
    bench.add(Email(recipient="a"))
    tried(session, complete, committed(session, queue.claim, owner="w"))
    bench.take_all_back(Email)


# -- order and limits ------------------------------------------------------------------


def last_comes_first(patch: Patch) -> None:
    select = ReadyRows.select

    def reversed_(ready: ReadyRows, *columns: Any, plain: bool = False) -> Any:
        keys = (attribute.desc() for attribute in ready.mapping.key_attributes)
        return select(ready, *columns, plain=plain).order_by(None).order_by(*keys)

    patch.setattr(ReadyRows, "select", reversed_)


def last_of_key_first(patch: Patch) -> None:
    last_comes_first(patch)
    counts_no_claims(patch)  # which also looks whether a job is its key's first


def claim_in_order(bench: Bench) -> None:
    queue, session = JobQueue(Email, strict_order=True), bench.session()
    bench.add(*(Email(recipient=recipient) for recipient in "abc"))
    while claim := committed(session, queue.claim, owner="w"):
        tried(session, complete, claim)


def claim_keys_in_order(bench: Bench) -> None:
    queue, session = JobQueue(Mail, serial_by=Mail.account_id), bench.session()
    bench.add(*(Mail(account_id=1) for _ in "abc"))
    while claim := committed(session, queue.claim, owner="w"):
        tried(session, complete, claim)


def counts_no_claims(patch: Patch) -> None:
    def allowed(self: Any, writer: Any, candidates: Any) -> Any:
        return [replace(job, claimed=(0,) * len(job.locks)) for job in candidates]

    patch.setattr(PerKey, "_allowed", allowed)


def two_jobs_of_a_key(bench: Bench) -> None:
    queue = JobQueue(Mail, limit_by={Mail.account_id: 1})
    bench.add(*(Mail(account_id=1) for _ in "ab"))
    for owner in "ab":
        committed(bench.session(), queue.claim, owner=owner)


def locks_no_keys(patch: Patch) -> None:
    for alias in SERVERS:
        locks = type(database_of_dialect(dialect_of(alias)).serial_key_locks())
        patch.setattr(locks, "take", lambda self, connection, tokens: set(tokens))


def two_open_claims(bench: Bench) -> None:
    """Claim by two queues of different jobs, before either has committed."""
    bench.add(*(Mail(account_id=1, region=region) for region in "ab"))
    claims = []
    for region in "ab":
        queue = JobQueue(Mail, Mail.region == region, limit_by={Mail.account_id: 1})
        session = bench.session()
        claims.append((session, queue.claim(session, owner=region)))
    for session, _ in claims:
        session.commit()
    for session, claim in claims:
        tried(session, complete, claim)


MUTANTS = (
    Mutant("finish without a fence", "fenced finish", without_fence, finish_after_a_reap),
    Mutant("fence without its owner_date", "fenced finish", without_date, finish_by_namesake),
    Mutant("claims that share an owner_date", "own fence", same_date, claim_twice, RETURNING),
    Mutant("claim and mark without the status", "one fence", without_status, two_claims),
    Mutant("held claim without row locks", "one fence", without_locks, two_held_claims, SERVERS),
    Mutant("advisory claim without post-check", "finished", no_post_check, claim_late, POSTGRESQL),
    Mutant("owner_date by the client's clock", "clock", client_clock, release_twice, RETURNING),
    Mutant("mark of more jobs than are returned", "lost job", marks_more, drain, drained=True),
    Mutant("reap that ignores life", "owner life", life_is_ignored, reap_beside_owner),
    Mutant("renewal without its date", "renewal", renews_no_date, renew_and_reap),
    Mutant("reap without a second look", "fenced finish", looks_once, finish_in_reap, SERVERS),
    Mutant("fail that forgets attempts", "attempts", fail_forgets_attempts, claim_after(try_again)),
    Mutant("release that counts", "attempts", release_counts, claim_after(release)),
    Mutant("complete that leaves the status", "fenced finish", no_completion, complete_and_reap),
    Mutant("strict order reversed", "claim order", last_comes_first, claim_in_order),
    Mutant("order of a key reversed", "key order", last_of_key_first, claim_keys_in_order),
    Mutant("limit of a key not counted", "key limit", counts_no_claims, two_jobs_of_a_key),
    Mutant("key without its lock", "key limit", locks_no_keys, two_open_claims, SERVERS),
)
