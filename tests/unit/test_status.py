"""The statuses are plain strings, and each verb changes them as the diagram says."""

from __future__ import annotations

import json
from typing import Any

import pytest

import sa_jobqueue
from sa_jobqueue import ArgumentError, JobStatus
from sa_jobqueue.model.status import status_word
from sa_jobqueue.model.transitions import FINISHED, TRANSITIONS, UNFINISHED, left_by


@pytest.mark.parametrize("status", JobStatus)
def test_a_status_is_its_string(status: JobStatus) -> None:
    word = status.value

    assert status == word
    assert (str(status), f"{status}", f"{status:>10}") == (word, word, f"{word:>10}")
    assert {word: "found"}[status] == "found"
    assert json.dumps([status]) == f'["{word}"]'
    assert JobStatus(word) is status


def test_every_status_fits_into_its_column() -> None:
    assert [status_word(status) for status in JobStatus] == [
        "unclaimed",
        "claimed",
        "done",
        "failed",
        "cancelled",
    ]


@pytest.mark.parametrize("word", ["x", "a" * 16, "to be sent", "v1.2:sent-off", "_x", "7"])
def test_a_word_of_letters_digits_and_harmless_signs_can_be_a_status(word: str) -> None:
    assert status_word(word) == word


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
        status_word(word)


def test_a_status_word_is_a_plain_string() -> None:
    assert type(status_word(JobStatus.DONE)) is str


# The diagram


def test_every_transition_is_made_by_a_public_verb() -> None:
    assert set(TRANSITIONS) <= set(sa_jobqueue.__all__)


def test_no_verb_leaves_a_status_as_it_is() -> None:
    changes = [change for changes in TRANSITIONS.values() for change in changes]

    assert all(before is not after for before, after in changes)


@pytest.mark.parametrize(
    ("verb", "before", "after"),
    [
        ("claim", {"unclaimed"}, {"claimed"}),
        ("complete", {"claimed"}, {"done"}),
        ("fail", {"claimed"}, {"unclaimed", "failed"}),
        ("cancel_claimed", {"claimed"}, {"cancelled"}),
        ("release", {"claimed"}, {"unclaimed"}),
        ("cancel", {"unclaimed"}, {"cancelled"}),
        ("retry", {"failed", "done", "cancelled"}, {"unclaimed"}),
        ("start_round", {"failed", "done", "cancelled"}, {"unclaimed"}),
    ],
)
def test_a_verb_leaves_and_writes_these_statuses(
    verb: str, before: set[str], after: set[str]
) -> None:
    changes = TRANSITIONS[verb]

    assert {left for left, _ in changes} == before
    assert {written for _, written in changes} == after


def test_every_status_can_be_reached_and_left() -> None:
    changes = [change for changes in TRANSITIONS.values() for change in changes]

    assert {before for before, _ in changes} == set(JobStatus)
    assert {after for _, after in changes} == set(JobStatus)


def test_only_a_claim_makes_a_job_claimed() -> None:
    claiming = [
        verb for verb, changes in TRANSITIONS.items() if "claimed" in dict(changes).values()
    ]

    assert claiming == ["claim"]


def test_a_finished_job_can_be_retried_and_started_anew_in_a_round() -> None:
    assert left_by("retry") == left_by("start_round") == FINISHED


def test_every_status_is_finished_or_unfinished() -> None:
    assert sorted((*FINISHED, *UNFINISHED)) == sorted(JobStatus)
