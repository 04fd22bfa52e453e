"""The ticks of cron expressions: clock changes, and which ticks are due."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from sa_jobqueue.schedules import Missed

# Inner: the parser and the rule of ticks, at moments that no server's clock has.
from sa_jobqueue.schedules.ticks import Cron, Due, due_ticks

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("expression", "start", "expected"),
    [
        ("0 7 * * *", "2026-03-28T00:00+01:00", ["03-28 07:00 +0100", "03-29 07:00 +0200"]),
        ("30 2 * * *", "2026-03-28T12:00+01:00", ["03-29 03:00 +0200", "03-30 02:30 +0200"]),
        ("30 2 * * *", "2026-10-24T12:00+02:00", ["10-25 02:30 +0200", "10-26 02:30 +0100"]),
        ("30 2 * * *", "2026-10-25T02:10+01:00", ["10-26 02:30 +0100", "10-27 02:30 +0100"]),
        ("15 30 2 * * *", "2026-10-24T12:00+02:00", ["10-25 02:30 +0200", "10-25 02:30 +0100"]),
        ("*/30 * * * *", "2026-03-29T01:15+01:00", ["03-29 01:30 +0100", "03-29 03:00 +0200"]),
    ],
)
def test_clocks_that_change_move_ticks_as_in_debians_cron(
    expression: str, start: str, expected: list[str]
) -> None:
    cron = Cron(expression, "Europe/Berlin")

    found = islice(cron.all_after(datetime.fromisoformat(start)), 2)

    assert [f"{tick.astimezone(BERLIN):%m-%d %H:%M %z}" for tick in found] == expected


#: Changes at midnight, twice in a month, and by a whole day.
ZONES = ("Africa/Cairo", "America/Sao_Paulo", "Asia/Tehran", "Europe/Berlin", "Pacific/Apia")
YEARS = (2011, 2015, 2018, 2024, 2026)

#: Some go by real time when the clocks change, and some are at fixed times.
EXPRESSIONS = (
    *("*/15 * * * *", "*/20 0 * * *", "0 */2 * * *", "15 * * * *", "* 9 * * *", "0 */30 2 * * *"),
    *("30 * * * sun", "30 2 * * *", "0 0 * * *", "0,30 0-3 * * *", "45 1 * * *", "0 1,2,3 * * *"),
)


def near_a_change(dice: random.Random, zone: ZoneInfo) -> datetime:
    """Return a time up to thirty hours before the clocks of a zone change, if they do."""
    moment = datetime(dice.choice(YEARS), dice.randrange(1, 13), 1, tzinfo=UTC)
    for _ in range(200):
        later = moment + timedelta(days=1)
        if moment.astimezone(zone).utcoffset() != later.astimezone(zone).utcoffset():
            break
        moment = later
    return moment - timedelta(minutes=dice.randrange(60 * 30))


@pytest.mark.parametrize("zone", ZONES)
def test_near_a_change_of_clocks_ticks_do_not_depend_on_where_one_begins(zone: str) -> None:
    dice = random.Random(zone)
    for expression in EXPRESSIONS:
        cron = Cron(expression, zone)
        start = near_a_change(dice, cron.zone)
        ticks = list(cron.between(start, start + timedelta(days=4)))

        for _ in range(5):
            asked = start + timedelta(minutes=dice.randrange(60 * 24 * 3))
            past = [tick for tick in ticks if tick <= asked]
            coming = [tick for tick in ticks if tick > asked]
            if coming:
                assert cron.after(asked) == coming[0]
            if past:
                assert cron.latest(ticks[0], asked) == past[-1]


HOURLY, EACH_MINUTE, EACH_SECOND = "0 * * * *", "* * * * *", "* * * * * *"

#: In seconds.
MINUTE, HOUR, YEARS_LATER = 60, 3600, 4000 * 24 * 3600


@pytest.mark.parametrize(
    ("expression", "missed", "failed", "now", "ticks", "skipped", "next_tick"),
    [
        # A clock that was set back repeats nothing.
        *((HOURLY, missed, False, -3 * HOUR, [], None, 0) for missed in Missed),
        # The tick of this minute is kept.
        (HOURLY, "skip", False, 3 * HOUR + 1, [3 * HOUR], 0, 4 * HOUR),
        # A tick that has failed is kept until the next one is due, which takes its place.
        (HOURLY, "skip", True, HOUR - 1, [0], None, HOUR),
        (HOURLY, "skip", True, HOUR + 1, [HOUR], 0, 2 * HOUR),
        (HOURLY, "skip", True, 2 * HOUR - 1, [], 0, 2 * HOUR),
        (EACH_MINUTE, "skip", True, MINUTE + 1, [MINUTE], 0, 2 * MINUTE),
        (EACH_MINUTE, "skip", True, 3 * MINUTE + 3, [3 * MINUTE], 0, 4 * MINUTE),
        (EACH_SECOND, "skip", True, 62, range(3, 63), 0, 63),
        # Years of missed seconds are passed over at once.
        (EACH_SECOND, "once", False, YEARS_LATER, [YEARS_LATER], 0, YEARS_LATER + 1),
        (
            *(EACH_SECOND, "skip", False, YEARS_LATER),
            *(range(YEARS_LATER - 59, YEARS_LATER + 1), 0, YEARS_LATER + 1),
        ),
    ],
)
def test_which_ticks_are_due_and_which_are_skipped(
    expression: str,
    missed: str,
    failed: bool,
    now: int,
    ticks: list[int],
    skipped: int | None,
    next_tick: int,
) -> None:
    found = due_ticks(Cron(expression), at(0), at(now), Missed(missed), failed=failed)

    wanted = tuple(map(at, ticks))
    assert found == Due(wanted, None if skipped is None else at(skipped), at(next_tick))


def at(seconds: int) -> datetime:
    """Return the time so many seconds after the first tick."""
    return datetime(2026, 5, 1, 7, tzinfo=UTC) + timedelta(seconds=seconds)
