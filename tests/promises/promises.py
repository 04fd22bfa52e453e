"""The promises of docs/promises.md, and for each a mutant: the library with this promise broken.

`python -m tests.promises` breaks each promise in a copy of the checkout, and runs the tests that
have to fail then.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """A change of a file of the package.

    Attributes:
        file: its path below ``sa_jobqueue``.
        before: what stands there once.
        after: what stands there in the mutant.
    """

    file: str
    before: str
    after: str


class Promise:
    """A promise in the words of docs/promises.md.

    Args:
        tests: the tests that fail when it is broken, as pytest names them.
        edits: what breaks it.
    """

    def __init__(self, text: str, tests: tuple[str, ...], *edits: Edit) -> None:
        self.text, self.tests, self.edits = text, tests, edits


NO_ROW_LOCK = Edit(
    "strategies/ready_rows.py",
    "        return statement.with_for_update(\n",
    "        return statement\n        statement.with_for_update(\n",
)
NO_COUNT = Edit(
    "strategies/strategy.py",
    'is_ready = status_is(self.mapping.column("status"), self.spec.ready)',
    'is_ready = self.mapping.column("status").is_not(None)',
)

PROMISES = (
    Promise(
        "No crash loses a job: each job runs at least once.",
        ("tests/crash/test_reaped_workers.py",),
        Edit(
            "verbs/reap.py",
            "if state is OwnerState.DEAD}",
            "if state is OwnerState.DEAD and not name}",
        ),
    ),
    Promise(
        "Writes in the same transaction as the finish happen exactly once.",
        ("tests/contract/worker/test_transactional.py",),
        Edit(
            "worker/handlers.py",
            "    return [in_hand for in_hand in jobs if in_hand.fence.identity in found]",
            "    return [*jobs]",
        ),
        Edit(
            "worker/handlers.py",
            "            raise _Over(ArgumentError(CHANGED))",
            "            return",
        ),
    ),
    Promise(
        "Other work, such as an email, can happen twice. Make such work idempotent.",
        ("tests/crash/test_reaped_workers.py",),
        Edit(
            "verbs/reap.py",
            "            attempts_used_up(mapping),",
            "            ~attempts_used_up(mapping),",
        ),
    ),
    Promise(
        "A finish writes only to jobs that its claim still holds. `ClaimLost.lost` lists the "
        "lost jobs.",
        ("tests/contract/finish/test_fence.py",),
        Edit(
            "fence/statements.py",
            "    if not unmarked:\n        owner, date",
            "    if unmarked and renewed:\n        owner, date",
        ),
    ),
    Promise(
        "Two claims never hold the same job at the same time.",
        ("tests/contract/claim/test_concurrency.py",),
        NO_ROW_LOCK,
        NO_COUNT,
    ),
    Promise(
        "A claim never gets more jobs than its limit.",
        ("tests/contract/claim/test_strategies.py",),
        Edit(
            "verbs/claim.py",
            "Request(name, limit, rows)",
            "Request(name, limit + 1, rows)",
        ),
    ),
    Promise(
        "A claimed job stays claimed until somebody finishes, releases or reaps it.",
        (
            "tests/contract/claim/test_claim.py::"
            "test_a_claimed_job_is_claimed_by_nobody_until_it_is_released_or_reaped",
            "tests/contract/claim/test_concurrency.py",
        ),
        Edit(
            "strategies/ready_rows.py",
            "        return self.mapping.has_status(self.spec.ready)",
            "        return self.mapping.has_status(self.spec.ready, self.spec.during)",
        ),
        Edit(
            "strategies/ready_rows.py",
            "[word_literal(word), word_literal(word)]",
            "[word_literal(word), word_literal(self.spec.during)]",
        ),
        NO_COUNT,
    ),
    Promise(
        "When a worker's process ends, other workers get its jobs within seconds.",
        ("tests/crash/test_reaped_workers.py",),
        Edit(
            "owners/alive.py",
            "OwnerState.ALIVE if lock in held else OwnerState.DEAD",
            "OwnerState.ALIVE if lock in held else OwnerState.UNKNOWN",
        ),
    ),
    Promise(
        "A slow worker keeps its jobs, unless you set `max_runtime`.",
        ("tests/contract/reap/test_reap.py",),
        Edit(
            "verbs/reap.py", "if state is OwnerState.UNKNOWN}", "if state is not OwnerState.DEAD}"
        ),
    ),
    Promise(
        "The owner of a claim is dead only if the server says so. If the server cannot tell, "
        "the claim's lease decides.",
        ("tests/contract/reap/test_reap.py",),
        Edit("verbs/reap.py", "if state is OwnerState.DEAD}", "if state is not OwnerState.ALIVE}"),
    ),
    Promise(
        "After a crash, `claimed_by()` returns the claims of an owner.",
        ("tests/contract/finish/test_fence.py",),
        Edit(
            "verbs/claim.py",
            "mapping.has_status(*self.spec.in_progress),\n                mapping.attribute",
            "mapping.has_status(self.spec.ready),\n                mapping.attribute",
        ),
    ),
    Promise(
        "No verb commits or rolls back your transaction.",
        ("tests/contract/claim/test_claim.py",),
        Edit(
            "verbs/claim.py",
            "            return self._claim_of(writer, request, taken, options)",
            "            claimed = self._claim_of(writer, request, taken, options)\n"
            "            session.commit()\n"
            "            return claimed",
        ),
    ),
    Promise(
        "`strict_order=True` claims jobs in exact order, one claimer at a time.",
        ("tests/contract/strict_order/test_concurrency.py",),
        Edit(
            "strategies/__init__.py",
            "kind = InOrder if database.skip_locked else",
            "kind = SkipLocked if database.skip_locked else",
        ),
    ),
    Promise(
        "`serial_by=` claims one job of each key at a time, in order.",
        ("tests/contract/serial/test_queues.py",),
        Edit(
            "strategies/spec.py",
            'KeyLimit(key_columns(mapping, "serial_by", serial_by), 1, serial=True)',
            'KeyLimit(key_columns(mapping, "serial_by", serial_by), 2, serial=True)',
        ),
    ),
    Promise(
        "`limit_by=` claims at most n jobs of each key at a time.",
        ("tests/contract/serial/test_queues.py",),
        Edit(
            "strategies/spec.py",
            'KeyLimit(key_columns(mapping, "limit_by", key), most)',
            'KeyLimit(key_columns(mapping, "limit_by", key), most + 1)',
        ),
    ),
    Promise(
        '`strategy="held"` claims rows of any mapped class, and keeps the row lock as the claim '
        "until the transaction ends.",
        ("tests/contract/claim/test_strategies.py", "tests/contract/claim/test_held_rows.py"),
        NO_ROW_LOCK,
        Edit(
            "strategies/held.py",
            "if jobs and self.mapping.table not in self.database.proved_tables:",
            "if not jobs and self.mapping.table not in self.database.proved_tables:",
        ),
    ),
    Promise(
        '`strategy="advisory"` claims rows of any mapped class on PostgreSQL and writes '
        "nothing to them.",
        ("tests/contract/advisory",),
        Edit(
            "strategies/advisory.py",
            "func.pg_try_advisory_lock(*found[-2:])",
            "func.pg_try_advisory_lock_shared(*found[-2:])",
        ),
    ),
    Promise(
        "`named_lock()` gives a name to one holder at a time.",
        ("tests/contract/named_locks/test_holders.py",),
        Edit(
            "owners/named_lock.py",
            "self._database().acquire_lock(self.engine, self.name, deadline, self.shared)",
            'self._database().acquire_lock(self.engine, f"{self.name} {id(deadline)}", deadline)',
        ),
    ),
    Promise(
        "On an unknown or too old server, the first claim raises `UnsupportedDatabase`.",
        ("tests/contract/claim/test_look_alikes.py",),
        Edit(
            "databases/registry.py",
            "    if product is not None:\n        raise UnsupportedDatabase(",
            "    if product is not None and not told:\n        raise UnsupportedDatabase(",
        ),
    ),
    Promise(
        "If a server ignores row locks, two claims that write to rows still never get the same "
        "job.",
        ("tests/contract/claim/test_without_locks.py",),
        NO_COUNT,
    ),
)
