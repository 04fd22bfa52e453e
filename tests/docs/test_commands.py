"""The commands on the pages have the arguments and the options that the command line takes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest

from sa_jobqueue.cli import cli

from .markdown import ROOT, code_blocks

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands() -> Iterator[tuple[str, str]]:
    """Yield each line of the pages that is a command, with the name of its page."""
    for page in PAGES:
        for block in code_blocks(page.read_text(encoding="utf-8"), "sh"):
            for line in block.splitlines():
                _, name, arguments = line.partition("sa-jobqueue ")
                if name and not line.startswith("python"):
                    yield page.name, arguments


@pytest.mark.parametrize(("page", "arguments"), list(commands()))
def test_a_command_on_a_page_is_understood(page: str, arguments: str) -> None:
    name, *rest = shlex.split(arguments, comments=True)
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, name

    command.make_context(name, rest)
