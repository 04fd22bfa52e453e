"""Text of strangers in a terminal: names, errors and keys come from the database."""

from __future__ import annotations

from rich.markup import escape


def harmless(text: str) -> str:
    """Write a stranger's text so that neither rich nor the terminal obeys it."""
    return escape("".join(each if each.isprintable() else "\ufffd" for each in text))
