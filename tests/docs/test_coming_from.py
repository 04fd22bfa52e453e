"""The code of docs/coming-from.md runs from top to bottom."""

from __future__ import annotations

import pytest

from .markdown import code_blocks, page


def test_the_code_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(code_blocks(page("docs/coming-from.md"), "python"))

    exec(compile(code, "coming-from.md", "exec", dont_inherit=True), {"__name__": "coming_from"})

    # Bert's email is not due yet.
    assert capsys.readouterr().out.splitlines() == [
        "to anna@example.org",
        "to carla@example.org",
        "to dora@example.org",
        "5",
    ]
