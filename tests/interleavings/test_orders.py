"""Whatever the order of two sessions' steps, the checker finds no broken promise."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, NullPool, create_engine
from sqlalchemy.orm import Session

from tests.evidence.checker import check_files
from tests.evidence.ledger import Ledger
from tests.interleavings.scripts import SCRIPTS, SERIAL_SCRIPTS, WORKFLOW_SCRIPTS, Actor, Sender
from tests.interleavings.stepper import Script, Stepped, Stepper
from tests.support import make_engine, with_empty_tables

KEYS = (1, 1, 2, 3)

BY_TURNS = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

#: Each pair of scripts, with who plays both.
PAIRS = [
    pytest.param(actor, (first, second), id=f"{name} | {other}", marks=BY_TURNS)
    for actor, scripts in ((Actor, SCRIPTS), (Actor, SERIAL_SCRIPTS), (Sender, WORKFLOW_SCRIPTS))
    for (name, first), (other, second) in itertools.combinations_with_replacement(
        scripts.items(), 2
    )
]
TRIOS = [
    pytest.param(Actor, tuple(SCRIPTS[name] for name in names), id=" | ".join(names))
    for names in (
        ("claim and complete", "reap and claim", "renew and complete"),
        ("turns", "turns", "reap and claim"),
        ("round and claim", "fail and claim", "cancel and retry"),
    )
]


def orders(sessions: int) -> Iterator[tuple[int, ...]]:
    """Yield every order of four steps of each session: 70 for two."""
    if sessions == 2:
        for first in itertools.combinations(range(8), 4):
            yield tuple(0 if place in first else 1 for place in range(8))
        return
    steps = [session for session in range(sessions) for _ in range(4)]
    dice = random.Random(0)
    for _ in range(300):
        yield tuple(dice.sample(steps, len(steps)))


@pytest.fixture(scope="module")
def kept_engine(db_url: URL, db_alias: str) -> Iterator[Engine]:
    """An engine with the table, whose SQLite refuses at once what would wait."""
    if db_alias == "sqlite":
        at_once = {"timeout": 0, "check_same_thread": False}
        engine = create_engine(db_url, poolclass=NullPool, connect_args=at_once)
    else:
        engine = make_engine(db_url, isolation_level="READ COMMITTED")
    yield engine
    engine.dispose()


def judged(
    engine: Engine,
    alias: str,
    scripts: Sequence[Script],
    order: Sequence[int],
    path: Path,
    actor: type[Actor],
) -> list[str]:
    """Take the steps in an order, drain the table, and return what the checker finds."""
    with_empty_tables(engine, actor.entity.metadata)
    with Ledger(path).listen(actor.entity), ExitStack() as stack:
        with Session(engine) as session:
            session.add_all(map(actor.new_job, KEYS))
            session.commit()
        actors = [actor(engine, f"worker {number}") for number in range(len(scripts))]
        for one in actors:
            one.begin()
        stepped = list(map(Stepped, actors, scripts))
        for each in stepped:
            stack.callback(each.close)
        Stepper(engine, alias, stepped).run(order)
        with closing(actor(engine, "drain")) as drain:
            drain.drain()
    return [str(fault) for fault in check_files(path, drained=True)]


def sample(sessions: int, full: bool) -> list[tuple[int, ...]]:
    """Choose the orders of a test: all, or one by chance."""
    every = list(orders(sessions))
    return every if full else [random.choice(every)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("actor", "scripts"), PAIRS + TRIOS)
def test_no_order_of_two_or_three_sessions_breaks_a_promise(
    kept_engine: Engine,
    db_alias: str,
    full: bool,
    actor: type[Actor],
    scripts: Sequence[Script],
    tmp_path: Path,
) -> None:
    for number, order in enumerate(sample(len(scripts), full)):
        path = tmp_path / f"{number}.jsonl"
        faults = judged(kept_engine, db_alias, scripts, order, path, actor)

        assert faults == [], order
