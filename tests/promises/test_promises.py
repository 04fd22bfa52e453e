"""The list of promises is that of docs/promises.md, and each has a mutant and tests."""

from __future__ import annotations

from tests.docs.markdown import ROOT, page, table

from .promises import PROMISES


def test_the_promises_are_those_of_the_page() -> None:
    promised = [row["promise"] for row in table(page("docs/promises.md"), "promise")]

    assert [promise.text for promise in PROMISES] == promised


def test_each_mutant_changes_what_is_there() -> None:
    missing = [
        (edit.file, edit.before)
        for promise in PROMISES
        for edit in promise.edits
        if page(f"sa_jobqueue/{edit.file}").count(edit.before) != 1
    ]

    assert missing == []


def test_each_promise_has_tests_that_are_there() -> None:
    for promise in PROMISES:
        for test in promise.tests:
            file, _, name = test.partition("::")
            assert (ROOT / file).exists(), test
            assert not name or f"def {name}(" in page(file), test
