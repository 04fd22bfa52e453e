"""The cost of a batch in statements, transactions, and calls for each row; not its time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import URL, Engine, event
from sqlalchemy.orm import Session

import sa_jobqueue
from sa_jobqueue import JobQueue
from tests.models import Email, add_emails
from tests.support import make_engine, statements_seen

OURS = str(Path(sa_jobqueue.__file__).parent)

#: The number of statements of a claim and its finish under READ COMMITTED.
BATCH = {
    "skip_locked": {"postgresql": 2, "mysql": 4, "mariadb": 4},
    "candidates": {"postgresql": 4, "mysql": 5, "mariadb": 5},
    "held": {"postgresql": 2, "mysql": 3, "mariadb": 3},
    "update_then_select": {"mysql": 5, "mariadb": 5},
    "compare_and_set": {"sqlite": 3},  # one is a savepoint, which is no round trip
}


@pytest.fixture
def fast(db_url: URL, db_alias: str, engine: Engine) -> Iterator[Engine]:
    """An engine with the settings that are recommended for workers."""
    options: dict[str, Any] = {} if db_alias == "sqlite" else {"isolation_level": "READ COMMITTED"}
    made = make_engine(db_url, **options)
    yield made
    made.dispose()


def warm(engine: Engine, queue: JobQueue[Email]) -> None:
    """Have all statements built: claim and finish one job, and several."""
    for count in (1, 3, 3):  # the next one goes on where this one began
        with Session(engine) as session:
            add_emails(session, *"x" * count)
            claimed = queue.claim_rows(session, owner="w", limit=count)
            queue.complete(session, claimed, delete=True)
            session.commit()


def run_batch(engine: Engine, queue: JobQueue[Email], limit: int) -> None:
    """Claim rows and finish them, in two transactions; held ones in one."""
    with engine.connect() as connection:
        claimed = queue.claim_rows(connection, owner="w", limit=limit)
        if queue.plan.strategy != "held":
            connection.commit()
        assert len(claimed) == limit
        queue.complete(connection, claimed, delete=True)
        connection.commit()


def test_a_batch_takes_and_builds_no_statement_and_no_transaction_that_it_does_not_need(
    fast: Engine, session: Session, strategy: str, db_alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = JobQueue(Email, strategy=strategy)
    warm(fast, queue)
    add_emails(session, *"abcdefghi")
    compiled: list[Any] = []
    compiler: Any = fast.dialect.statement_compiler

    def counting(*args: Any, **kw: Any) -> Any:
        compiled.append(args)
        return compiler(*args, **kw)

    commits: list[Any] = []
    event.listen(fast, "commit", commits.append)
    monkeypatch.setattr(fast.dialect, "statement_compiler", counting)
    for limit in (3, 2, 4):  # the number of keys is no part of a statement
        commits.clear()
        with statements_seen(fast) as seen:
            run_batch(fast, queue, limit)

        assert len(seen) == BATCH[strategy][db_alias], seen
        assert len(commits) == (1 if strategy == "held" else 2)
    assert not compiled


def calls_for(run: Callable[[int], None], limit: int) -> int:
    """Count the calls of sa_jobqueue's own functions."""
    calls = 0

    def see(frame: FrameType, happening: str, _: Any) -> None:
        nonlocal calls
        calls += happening == "call" and frame.f_code.co_filename.startswith(OURS)

    sys.setprofile(see)
    try:
        run(limit)
    finally:
        sys.setprofile(None)
    return calls


#: The calls counted for each further job of a batch, and some more: a generator's step counts.
MORE_CALLS = {"rows": 6, "entities": 9}


@pytest.mark.parametrize("what", MORE_CALLS)
def test_a_job_more_costs_few_calls(
    fast: Engine, session: Session, strategy: str, what: str
) -> None:
    queue = JobQueue(Email, strategy=strategy)
    claim: Any = queue.claim_rows if what == "rows" else queue.claim
    add_emails(session, *"x" * 240)

    def run(limit: int) -> None:
        with Session(fast, expire_on_commit=False) as own:
            claimed = claim(own, owner="w", limit=limit)
            if strategy != "held":
                own.commit()
            queue.complete(own, claimed, delete=True)
            own.commit()

    run(10)
    run(110)
    of_few, of_many = calls_for(run, 10), calls_for(run, 110)

    assert (of_many - of_few) / 100 <= MORE_CALLS[what]
