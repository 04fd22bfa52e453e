"""Commands that change rows say what they are about to do, and ask, unless ``--yes`` is given."""

from __future__ import annotations

import click

from .options import Option

#: --yes, for scripts.
yes_option: Option = click.option("--yes", is_flag=True, help="Do it without asking.")


def ask(what: str, *, yes: bool) -> None:
    """Say what is about to be done, and go on if the user agrees.

    It is written to the errors, so that what the command prints stays alone.

    Raises:
        Abort: the user does not agree, or nobody is there to answer.
    """
    if not yes:
        click.confirm(f"About to {what}. Go on?", abort=True, err=True)
