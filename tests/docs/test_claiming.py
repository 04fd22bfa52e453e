"""The code of docs/claiming.md runs from top to bottom."""

from __future__ import annotations

import pytest

from .markdown import code_blocks, page


def test_the_code_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(code_blocks(page("docs/claiming.md"), "python"))

    exec(compile(code, "claiming.md", "exec", dont_inherit=True), {"__name__": "claiming"})

    assert capsys.readouterr().out.splitlines() == [
        "to anna@example.org",
        "to bert@example.org",
        "to carla@example.org",
        "to dora@example.org",
        "to emil@example.org",
        "to fritz@example.org",
        "to gerda@example.org",
        "0 claims were reaped",
    ]
