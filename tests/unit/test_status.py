"""The statuses are plain strings, and a word that would need escaping is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sa_jobqueue import ArgumentError, JobQueue, JobStatus
from tests.models import Email


@pytest.mark.parametrize("status", JobStatus)
def test_a_status_is_its_string(status: JobStatus) -> None:
    word = status.value

    assert status == word
    assert (str(status), f"{status}", f"{status:>10}") == (word, word, f"{word:>10}")
    assert {word: "found"}[status] == "found"
    assert json.dumps([status]) == f'["{word}"]'
    assert JobStatus(word) is status


@pytest.mark.parametrize(
    "word",
    [
        "",
        "a" * 65,
        "it's",
        'a"b',
        "50%",
        "a\\b",
        "a\nb",
        "a\n",
        " a",
        "-a",
        ":a",
        "é",
        "a;b",
        5,
        None,
    ],
    ids=repr,
)
def test_a_word_that_would_need_escaping_cannot_be_a_status(word: Any) -> None:
    with pytest.raises(ArgumentError, match="cannot be a status"):
        JobQueue(Email, during=word)
