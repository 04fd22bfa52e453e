"""The model itself: its invariants hold, and each of them breaks where a promise is taken away.

These tests run in the tox environment `model`, which has Node.js.
"""

from __future__ import annotations

import secrets

import pytest
from sqlalchemy import Engine

from tests.contract.round_models import emptied
from tests.model.replay import replaying
from tests.model.simulator import make_traces, quint, simulate

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
        with replaying(emptied(migrated)) as replay:
            replay.run(trace)
