"""The errors that are raised when a database server cannot be had."""

from __future__ import annotations


class ServerUnavailable(Exception):
    """No server of this database can be had here; the message says the way out."""

    def __init__(self, database: str, why: str, way_out: str) -> None:
        self.database = database
        self.why = why
        self.way_out = way_out
        super().__init__(f"{database}: {why}. {way_out}")


class NotHere(Exception):
    """One place of the search has no server; the search goes on to the next place."""
