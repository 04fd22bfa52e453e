"""Pages and help texts can be read once; tests/docs/plain_english.py has the rules."""

from __future__ import annotations

import click
import pytest

from sa_jobqueue.cli import cli

from .markdown import page
from .plain_english import findings, pages, paragraphs, sentences, shown


def complaints(text: str) -> list[str]:
    return [finding.complaint for finding in findings(text)]


def test_the_pages_are_in_plain_english() -> None:
    found = [shown(name, finding) for name in pages() for finding in findings(page(name))]

    assert "\n".join(found) == ""


@pytest.mark.parametrize("name", cli.commands)
def test_a_help_text_is_in_plain_english(name: str) -> None:
    command = cli.commands[name]
    options = [option for option in command.params if isinstance(option, click.Option)]

    texts = [command.help or "", *(option.help or "" for option in options)]

    assert [finding for text in texts for finding in findings(text)] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Such jobs are taken back.", "say: reaped, or returned to the queue"),
        ("So it waits.", "begin with the subject, not with 'So'"),
        ("A claim waits. Nor is it lost.", "begin with the subject, not with 'Nor'"),
        ("- a list\n- " + "word " * 31, "31 words: make two sentences of it"),
        ("| a | b |\n|---|---|\n| c | nothing can be had |", "say: you get, there is"),
        ("## Locks are\n\nA job is told\nthat it is lost.", "the log says"),
    ],
)
def test_a_sentence_that_has_to_be_read_twice_is_found(text: str, expected: str) -> None:
    (complaint,) = complaints(text)

    assert complaint.endswith(expected)


@pytest.mark.parametrize(
    "text",
    [
        "A claim is reaped.",
        "`taken back` is code.",
        "```sh\nSo " + "word " * 40 + "\n```",
        "Something is short. " * 10,
    ],
)
def test_a_plain_sentence_is_left_alone(text: str) -> None:
    assert complaints(text) == []


def test_a_sentence_ends_before_the_next_capital() -> None:
    (text,) = (text for _, text in paragraphs("It takes 1.5 s, e.g. Here. *Then* it ends."))

    assert list(sentences(text)) == ["It takes 1.5 s, e.g. Here.", "Then it ends."]


def test_a_finding_has_the_line_of_its_paragraph() -> None:
    (finding,) = findings("# Title\n\nA claim.\n\nSo it waits.")

    assert finding.line == 5
