"""The times of cron expressions: clock changes, leap days, and what is refused."""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest

from sa_jobqueue import ArgumentError
from sa_jobqueue.schedules.ticks import Cron

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("expression", "start", "expected"),
    [
        ("0 7 * * *", "2026-03-28T00:00", ["03-28 07:00 +0100", "03-29 07:00 +0200"]),
        ("30 2 * * *", "2026-03-28T12:00", ["03-29 03:00 +0200", "03-30 02:30 +0200"]),
        ("30 2 * * *", "2026-10-24T12:00", ["10-25 02:30 +0200", "10-26 02:30 +0100"]),
        ("15 30 2 * * *", "2026-10-24T12:00", ["10-25 02:30 +0200", "10-25 02:30 +0100"]),
        ("*/30 * * * *", "2026-03-29T01:15", ["03-29 01:30 +0100", "03-29 03:00 +0200"]),
    ],
)
def test_clocks_that_change_move_ticks_as_in_debians_cron(
    expression: str, start: str, expected: list[str]
) -> None:
    begin = datetime.fromisoformat(start).replace(tzinfo=BERLIN)

    found = islice(Cron(expression, "Europe/Berlin").all_after(begin), 2)

    assert [f"{tick.astimezone(BERLIN):%m-%d %H:%M %z}" for tick in found] == expected


def test_who_asks_in_the_second_of_two_equal_hours_gets_no_past_tick() -> None:
    asked = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 02:10 for the second time

    tick = Cron("30 2 * * *", "Europe/Berlin").after(asked)

    assert tick == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


def test_without_cronsim_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)

    with pytest.raises(ArgumentError, match=r"sa_jobqueue\[schedules\]"):
        Cron("* * * * *").after(datetime(2026, 1, 1, tzinfo=UTC))


#: Changes at midnight, twice in a month, and by a whole day.
ZONES = (
    "Africa/Cairo",
    "America/Sao_Paulo",
    "Asia/Tehran",
    "Europe/Berlin",
    "Pacific/Apia",
)
YEARS = (2011, 2015, 2018, 2024, 2026)
IN_REAL_TIME = (
    "*/15 * * * *",
    "*/20 0 * * *",
    "0 */2 * * *",
    "15 * * * *",
    "* 9 * * *",
    "0 */30 2 * * *",
    "30 * * * sun",
)
AT_FIXED_TIMES = (
    "30 2 * * *",
    "0 0 * * *",
    "0,30 0-3 * * *",
    "45 1 * * *",
    "0 1,2,3 * * *",
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


def until(cron: Cron, start: datetime, end: datetime) -> list[datetime]:
    return list(takewhile(lambda tick: tick <= end, cron.all_after(start)))


@pytest.mark.parametrize("zone", ZONES)
def test_near_a_change_of_clocks_ticks_do_not_depend_on_where_one_begins(zone: str) -> None:
    dice = random.Random(zone)
    for expression in (*IN_REAL_TIME, *AT_FIXED_TIMES):
        cron = Cron(expression, zone)
        start = near_a_change(dice, cron.zone)
        ticks = until(cron, start, start + timedelta(days=4))

        for _ in range(5):
            asked = start + timedelta(minutes=dice.randrange(60 * 24 * 3))
            past = [tick for tick in ticks if tick <= asked]
            coming = [tick for tick in ticks if tick > asked]
            if coming:
                assert cron.after(asked) == coming[0]
            if past:
                assert cron.latest(ticks[0], asked) == past[-1]
