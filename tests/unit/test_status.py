"""A word that would need escaping is no status."""

from __future__ import annotations

from typing import Any

import pytest

from sa_jobqueue import ArgumentError, JobQueue
from tests.models import Email

NO_WORDS = ["", "a" * 65, "it's", 'a"b', "50%", "a\\b", "a\nb", "a\n", " a", "-a", ":a", "é", "a;b"]


@pytest.mark.parametrize("word", [*NO_WORDS, 5, None], ids=repr)
def test_a_word_that_would_need_escaping_cannot_be_a_status(word: Any) -> None:
    with pytest.raises(ArgumentError, match="cannot be a status"):
        JobQueue(Email, during=word)
