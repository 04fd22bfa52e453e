"""The delay of a failed job, for any numbers."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sa_jobqueue import ArgumentError, ConstantBackoff, ExponentialBackoff, JobQueue
from tests.models import Email, Pair, Task

LONGEST_DELAY = timedelta(days=3650)
NOTHING = timedelta(0)
SECOND = timedelta(seconds=1)

many = settings(
    max_examples=200, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
attempts = st.integers(min_value=-(10**40), max_value=10**400)
waits = st.timedeltas(timedelta(microseconds=1), LONGEST_DELAY)


@st.composite
def exponential(draw: st.DrawFn, jitter: float | None = None) -> ExponentialBackoff:
    first, longest = sorted([draw(waits), draw(waits)])
    factor = draw(st.floats(1, allow_infinity=False, allow_nan=False))
    share = draw(st.floats(0, 1)) if jitter is None else jitter
    return ExponentialBackoff(first, factor, longest, share)


@many
@given(exponential(jitter=0), attempts, st.integers(0, 10**6))
def test_without_jitter_no_delay_is_shorter_than_the_delay_before(
    backoff: ExponentialBackoff, attempts: int, more: int
) -> None:
    assert backoff(attempts) <= backoff(attempts + more)


@many
@given(exponential(), attempts)
def test_jitter_shortens_a_delay_at_most_by_its_share_and_no_delay_is_longer_than_the_longest(
    backoff: ExponentialBackoff, attempts: int
) -> None:
    whole = ExponentialBackoff(backoff.first, backoff.factor, backoff.longest, jitter=0)(attempts)

    wait = backoff(attempts)

    assert whole * (1 - backoff.jitter) - timedelta(microseconds=1) <= wait <= whole
    assert wait >= NOTHING
    assert whole <= backoff.longest


def test_the_first_delays_are_as_on_the_page() -> None:
    backoff = ExponentialBackoff(jitter=0)

    waits = [backoff(attempts).total_seconds() for attempts in (0, 1, 2, 3, 12, 13, 10**9)]

    assert waits == [1, 1, 2, 4, 2_048, 3_600, 3_600]


@pytest.mark.parametrize("backoff", [ExponentialBackoff(), ConstantBackoff(timedelta(hours=1))])
def test_jobs_that_failed_together_do_not_come_back_together(
    backoff: ExponentialBackoff | ConstantBackoff,
) -> None:
    waits = {backoff(20) for _ in range(100)}

    assert len(waits) > 50
    assert min(waits) >= timedelta(minutes=54)
    assert max(waits) <= timedelta(hours=1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: ConstantBackoff(-SECOND), "delay must be a timedelta from zero to ten years"),
        (lambda: ConstantBackoff(timedelta.max), "delay must be a timedelta from zero"),
        (lambda: ConstantBackoff(SECOND, jitter=2), "jitter must be a share"),
        (lambda: ConstantBackoff(5), "delay must be a timedelta"),  # type: ignore[arg-type]
        (lambda: ExponentialBackoff(NOTHING), "first must be longer than zero"),
        (lambda: ExponentialBackoff(-SECOND), "first must be a timedelta"),
        (lambda: ExponentialBackoff(SECOND, longest=SECOND / 2), "not longer than longest"),
        (lambda: ExponentialBackoff(longest=timedelta(days=3651)), "longest must be a timedelta"),
        (lambda: ExponentialBackoff(factor=0.9), "factor must be a number, 1 or more: 0.9"),
        (lambda: ExponentialBackoff(factor=math.inf), "factor must be a number"),
        (lambda: ExponentialBackoff(factor=math.nan), "factor must be a number"),
        (lambda: ExponentialBackoff(factor="2"), "factor must be"),  # type: ignore[arg-type]
        (lambda: ExponentialBackoff(factor=True), "factor must be a number"),
        (lambda: ExponentialBackoff(jitter=1.1), "jitter must be a share, from 0 to 1: 1.1"),
        (lambda: ExponentialBackoff(jitter=-0.1), "jitter must be a share"),
        (lambda: ExponentialBackoff(jitter=math.nan), "jitter must be a share"),
        (lambda: JobQueue(Task, backoff=SECOND), r"Constant.* not datet"),  # type: ignore[arg-type]
        (lambda: JobQueue(Email, backoff=ConstantBackoff(SECOND)), "add RetryMixin, or leave"),
        (lambda: JobQueue(Pair, backoff=ConstantBackoff(SECOND)), "add RetryMixin, or leave"),
    ],
)
def test_an_invalid_policy_is_refused_when_it_is_made(wrong: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        wrong()
