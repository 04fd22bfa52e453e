"""The part of an error's text that is kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# Inner: a rule about texts of any length, which Hypothesis tries.
from sa_jobqueue.model.columns import SHORTEST_LENGTH, error_text


@settings(max_examples=100, deadline=None, database=None)
@given(st.text(st.characters()), st.integers(0, 300), st.integers(SHORTEST_LENGTH, 1_000))
def test_a_kept_error_is_never_too_long_and_has_both_ends(
    text: str, times: int, length: int
) -> None:
    kept = error_text(text * times, length)

    storable = (text * times).replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    assert kept == storable or (kept is None and not storable) or len(storable) > length
    assert len(kept or "") <= length
    assert storable[:30] == (kept or "")[:30]
    assert storable[-30:] == (kept or "")[-30:]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, None),
        ("", None),
        ("no", "no"),
        (ValueError("no"), "ValueError: no"),
        (KeyError(), "KeyError: "),
        (
            ExceptionGroup("two sites", [ValueError("no"), ExceptionGroup("b", [OSError("gone")])]),
            "ExceptionGroup: two sites (2 sub-exceptions): ValueError: no; "
            "ExceptionGroup: b (1 sub-exception): OSError: gone",
        ),
        (Unprintable(), "Unprintable: (its text raised RuntimeError)"),
        ("nul \0", "nul \\0"),
        ("half \udc80", "half \\udc80"),
    ],
)
def test_every_error_has_a_text_that_can_be_stored(
    error: str | BaseException | None, text: str | None
) -> None:
    assert error_text(error) == text
