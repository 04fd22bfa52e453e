"""The model itself: its invariants hold, and each of them breaks where a promise is taken away.

These tests run in the tox environment `model`, which has Node.js.
"""

from __future__ import annotations

import secrets

import pytest
from sqlalchemy import Engine, select

from sa_jobqueue import JobQueue, retry
from sa_jobqueue.worker import Worker
from tests.contract.serial.keyed import Mail
from tests.evidence.bench import Bench
from tests.evidence.churn import run_churn
from tests.evidence.conftest import CLASSES
from tests.evidence.history import History
from tests.evidence.mutants import MUTANTS, Mutant
from tests.model.histories import accepted
from tests.model.replay import Base, replaying
from tests.model.simulator import make_traces, quint, simulate
from tests.models import Task
from tests.support import with_empty_tables

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def samples(full: bool) -> int:
    """How many runs of the model are simulated."""
    return 10_000 if full else 40


def test_the_model_has_no_type_error() -> None:
    done = quint("typecheck", "configurations.qnt")

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("configuration", ["servers", "sqlite"])
def test_the_invariants_hold(configuration: str, samples: int) -> None:
    seed = secrets.randbelow(2**32)

    broken = simulate(configuration, samples=samples, steps=60, seed=seed)

    assert broken == set(), seed


@pytest.mark.parametrize(
    ("configuration", "invariants"),
    [
        ("unfenced", {"endedByItsClaim", "livingOwnersKeepTheirJobs", "attemptsAreCounted"}),
        ("deaf", {"livingOwnersKeepTheirJobs"}),
        ("forgetful", {"noJobIsStuck", "livingOwnersKeepTheirJobs"}),
        ("unlocked_keys", {"oneJobOfAKey"}),
    ],
)
def test_an_invariant_breaks_without_the_promise_that_keeps_it(
    configuration: str, invariants: set[str]
) -> None:
    broken = simulate(configuration, samples=20_000, steps=60, seed=1)

    assert broken
    assert broken <= invariants


def test_the_verbs_take_every_step_of_new_traces(
    migrated: Engine, db_alias: str, full: bool
) -> None:
    seed = secrets.randbelow(2**32)
    configuration = "sqlite" if db_alias == "sqlite" else "servers"

    for trace in make_traces(configuration, count=200 if full else 5, steps=80, seed=seed):
        with replaying(with_empty_tables(migrated, Base.metadata)) as replay:
            replay.run(trace)


@pytest.mark.parametrize("table", [Task.__tablename__, Mail.__tablename__])
def test_the_model_accepts_the_history_of_a_run(bench: Bench, full: bool, table: str) -> None:
    paths = run_churn(bench, seconds=3 if full else 0.5)

    assert accepted(*paths, table=table)


def test_the_model_accepts_the_history_of_workers(bench: Bench) -> None:
    with bench.recording(Task):
        bench.add(*(Task(name=str(number)) for number in range(5)))
        for _ in range(2):
            worker = Worker(bench.engine, JobQueue(Task), lambda task: None, limit=2, drain=True)
            worker.run()
            with bench.session() as session:
                retry(session, session.scalars(select(Task)).all())
                session.commit()

    assert accepted(bench.path, table=Task.__tablename__)


#: Mutants of what the model describes.
MODELLED = {
    "finish without a fence",
    "fence without its owner_date",
    "claims that share an owner_date",
    "claim and mark without the status",
    "reap that ignores life",
    "renewal without its date",
    "fail that forgets attempts",
    "release that counts",
    "complete that leaves the status",
    "key without its lock",
}


@pytest.mark.parametrize("sound", [True, False], ids=["sound", "mutant"])
@pytest.mark.parametrize(
    "mutant",
    [mutant for mutant in MUTANTS if mutant.name in MODELLED],
    ids=lambda mutant: mutant.name.replace(" ", "-"),
)
def test_the_model_refuses_the_history_of_a_mutant_and_accepts_that_of_the_library(
    bench: Bench, mutant: Mutant, sound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench.recording(*CLASSES):
        if not sound:
            mutant.breaks(monkeypatch)
        mutant.drive(bench)

    (table,) = {row.table for row in History.read(bench.path).records}
    assert accepted(bench.path, table=table) == sound
