"""The times of cron expressions: clock changes, leap days, and what is refused."""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest

from sa_jobqueue import ArgumentError
from sa_jobqueue.schedules.cron import Cron

BERLIN = ZoneInfo("Europe/Berlin")


def berlin(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN)


def ticks(expression: str, start: str, count: int, zone: str = "Europe/Berlin") -> list[str]:
    """Return ticks after a time in Berlin, as Berlin's clocks show them, with the offset."""
    found = islice(Cron(expression, zone).all_after(berlin(start)), count)
    return [f"{tick.astimezone(BERLIN):%m-%d %H:%M %z}" for tick in found]


def test_workdays_at_seven_in_berlin() -> None:
    assert ticks("0 7 * * mon-fri", "2026-01-01T00:00", 3) == [
        "01-01 07:00 +0100",
        "01-02 07:00 +0100",
        "01-05 07:00 +0100",
    ]


def test_seven_stays_seven_when_the_clocks_change() -> None:
    assert ticks("0 7 * * *", "2026-03-28T00:00", 2) == ["03-28 07:00 +0100", "03-29 07:00 +0200"]
    assert ticks("0 7 * * *", "2026-10-24T00:00", 2) == ["10-24 07:00 +0200", "10-25 07:00 +0100"]


def test_a_time_that_does_not_exist_comes_after_the_gap() -> None:
    assert ticks("30 2 * * *", "2026-03-28T12:00", 2) == ["03-29 03:00 +0200", "03-30 02:30 +0200"]


def test_a_time_that_exists_twice_comes_once() -> None:
    expected = ["10-25 02:30 +0200", "10-26 02:30 +0100"]

    assert ticks("30 2 * * *", "2026-10-24T12:00", 2) == expected


def test_with_seconds_real_time_counts() -> None:
    night = "15 30 2 * * *"

    assert ticks(night, "2027-03-27T12:00", 1) == ["03-29 02:30 +0200"]
    assert ticks(night, "2026-10-24T12:00", 2) == ["10-25 02:30 +0200", "10-25 02:30 +0100"]


def test_who_asks_in_the_second_of_two_equal_hours_gets_no_past_tick() -> None:
    asked = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 02:10 for the second time

    tick = Cron("30 2 * * *", "Europe/Berlin").after(asked)

    assert tick == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


def test_every_quarter_of_an_hour_comes_in_both_of_two_equal_hours_and_not_in_a_gap() -> None:
    assert len(ticks("*/15 * * * *", "2026-10-25T01:59", 8)) == 8
    twice = ticks("*/30 * * * *", "2026-10-25T01:59", 4)
    assert twice == [f"10-25 02:{m} {o}" for o in ("+0200", "+0100") for m in ("00", "30")]
    assert ticks("*/30 * * * *", "2026-03-29T01:15", 2) == [
        "03-29 01:30 +0100",
        "03-29 03:00 +0200",
    ]


def test_leap_days_come_in_leap_years() -> None:
    found = islice(Cron("0 0 29 2 *").all_after(datetime(2026, 1, 1, tzinfo=UTC)), 2)

    assert [tick.year for tick in found] == [2028, 2032]


def test_six_fields_begin_with_the_seconds() -> None:
    moment = datetime(2026, 1, 1, 0, 0, 1, 5, tzinfo=UTC)

    assert Cron("*/20 * * * * *").after(moment).second == 20


def test_without_cronsim_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)

    with pytest.raises(ArgumentError, match=r"sa_jobqueue\[schedules\]"):
        Cron("* * * * *").after(datetime(2026, 1, 1, tzinfo=UTC))


#: Changes at midnight, twice in a month, and by a whole day.
ZONES = (
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/Havana",
    "America/New_York",
    "America/Santiago",
    "America/Sao_Paulo",
    "Asia/Beirut",
    "Asia/Tehran",
    "Atlantic/Azores",
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
def test_in_real_time_each_minute_whose_local_time_fits_is_a_tick(zone: str) -> None:
    dice = random.Random(zone)
    for expression in IN_REAL_TIME:
        cron = Cron(expression, zone)
        start = near_a_change(dice, cron.zone)
        minutes = [start + timedelta(minutes=number) for number in range(1, 60 * 24 * 3)]
        # Where no clocks change, the ticks of a day are those of the same day in UTC.
        local = start.astimezone(cron.zone).replace(tzinfo=UTC) - timedelta(days=2)
        fits = set(until(Cron(expression), local, local + timedelta(days=8)))

        found = until(cron, start, minutes[-1])

        assert found == [
            minute for minute in minutes if minute.astimezone(cron.zone).replace(tzinfo=UTC) in fits
        ]


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
