"""Which ticks are due, by the clock as it is, and what becomes of missed ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sa_jobqueue.schedules.ticks import LATE, TRY_AGAIN, Cron, Due, Missed, due_ticks

HOURLY = Cron("0 * * * *")
SEVEN = datetime(2026, 5, 1, 7, tzinfo=UTC)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)


@pytest.mark.parametrize("missed", Missed)
def test_a_clock_that_was_set_back_repeats_nothing(missed: Missed) -> None:
    found = due_ticks(HOURLY, SEVEN, SEVEN - 3 * HOUR, missed)

    assert found == Due((), None, SEVEN)


def test_skip_keeps_the_tick_of_this_minute() -> None:
    found = due_ticks(HOURLY, SEVEN, SEVEN + 3 * HOUR + SECOND, Missed.SKIP)

    assert found == Due((SEVEN + 3 * HOUR,), SEVEN, SEVEN + 4 * HOUR)


def test_skip_keeps_a_tick_that_has_failed_until_the_next_one_is_due() -> None:
    last_moment = due_ticks(HOURLY, SEVEN, SEVEN + HOUR - SECOND, Missed.SKIP, failed=True)
    successor = due_ticks(HOURLY, SEVEN, SEVEN + HOUR + SECOND, Missed.SKIP, failed=True)
    much_later = due_ticks(HOURLY, SEVEN, SEVEN + 2 * HOUR - SECOND, Missed.SKIP, failed=True)

    assert last_moment == Due((SEVEN,), None, SEVEN + HOUR)
    assert successor == Due((SEVEN + HOUR,), SEVEN, SEVEN + 2 * HOUR)
    assert much_later == Due((), SEVEN, SEVEN + 2 * HOUR)


@pytest.mark.parametrize("tries", [1, 2, 3])
def test_skip_makes_one_job_of_a_tick_that_has_failed_and_the_next(tries: int) -> None:
    each_minute, again = Cron("* * * * *"), SEVEN + tries * (TRY_AGAIN + SECOND)

    found = due_ticks(each_minute, SEVEN, again, Missed.SKIP, failed=True)

    assert found == Due((SEVEN + tries * TRY_AGAIN,), SEVEN, SEVEN + (tries + 1) * TRY_AGAIN)


def test_skip_keeps_the_ticks_of_a_minute_after_one_that_has_failed() -> None:
    each_second, again = Cron("* * * * * *"), SEVEN + LATE + 2 * SECOND

    found = due_ticks(each_second, SEVEN, again, Missed.SKIP, failed=True)

    assert (found.ticks[0], found.ticks[-1]) == (SEVEN + 3 * SECOND, again)
    assert (len(found.ticks), found.skipped) == (60, SEVEN)


def test_years_of_missed_seconds_are_passed_over_at_once() -> None:
    now = SEVEN + timedelta(days=4000)
    for missed in (Missed.ONCE, Missed.SKIP):
        found = due_ticks(Cron("* * * * * *"), SEVEN, now, missed)

        assert (found.ticks[-1], found.skipped) == (now, SEVEN)
