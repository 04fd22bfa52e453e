"""How a page writes times, numbers, values and keys."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sa_jobqueue.ages import age_text, duration_text
from sa_jobqueue.web.rendering import from_path, in_path, plural, rate_text, value_text


@given(some.text(some.sampled_from("ab~012/.%")))
def test_a_key_in_a_path_is_a_single_step_and_is_read_again(text: str) -> None:
    step = in_path(text)

    assert from_path(step) == text
    assert "/" not in step
    assert quote(step) not in (".", "..")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.4, "59s"),
        (61, "1m 1s"),
        (3_600 * 3 + 60 * 12, "3h 12m"),
        (86_400 * 2 + 3_600, "2d 1h"),
        (-5, "0s"),
    ],
)
def test_an_age_has_two_units_at_most(seconds: float, text: str) -> None:
    assert age_text(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (0.0, "0 s"),
        (0.1234, "0.123 s"),
        (5.3e-05, "0 s"),
        (timedelta(seconds=1.2), "1.2 s"),
        (180, "3 min"),
        (timedelta(seconds=185), "3 min 5 s"),
        (3_599.7, "60 min"),
        (timedelta(hours=2, minutes=5), "2 h 5 min"),
        (timedelta(days=3), "3 d"),
    ],
)
def test_a_duration_in_a_sentence_is_as_people_say_it(
    duration: timedelta | float, text: str
) -> None:
    assert duration_text(duration) == text


def test_numbers_are_short() -> None:
    assert [rate_text(rate) for rate in (None, 0, 0.123, 3.14159, 1_234.5)] == [
        "\u2013",
        "\u2013",
        "0.12",
        "3.1",
        "1,234",
    ]
    assert [plural(count, "job") for count in (0, 1, 1_234)] == ["0 jobs", "1 job", "1,234 jobs"]


def test_a_value_of_bytes_is_written_as_python_writes_it() -> None:
    assert value_text(b"\x00<b>") == "b'\\x00<b>'"
