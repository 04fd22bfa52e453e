"""How a page writes times, numbers, values and keys."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

# Inner: no page makes each duration in a test's time.
from sa_jobqueue.ages import duration_text


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (0.0, "0 s"),
        (0.1234, "0.123 s"),
        (5.3e-05, "0 s"),
        (180, "3 min"),
        (timedelta(seconds=185), "3 min 5 s"),
        (3_599.7, "60 min"),
        (timedelta(hours=2, minutes=5), "2 h 5 min"),
        (timedelta(days=3), "3 d"),
    ],
)
def test_a_duration_in_a_sentence_is_as_people_say_it(duration: Any, text: str) -> None:
    assert duration_text(duration) == text
