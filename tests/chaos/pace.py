"""How busy a run is: what its faults do not need is left to whoever else uses the machine."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Pace:
    """The pauses of a run.

    Attributes:
        every: seconds from one fault to the next, on average.
        rest: how many times longer than usual players wait between two polls, or two inserts.
    """

    every: float = 0.4
    rest: float = 1

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Let the command line choose."""
        parser.add_argument(
            "--every",
            type=float,
            default=cls.every,
            help="seconds from one fault to the next, on average; default: %(default)g",
        )
        parser.add_argument(
            "--rest",
            type=float,
            default=cls.rest,
            help="players wait so many times longer between two polls or two inserts; default: 1",
        )

    @classmethod
    def given(cls, given: argparse.Namespace) -> Self:
        """Read what the command line chose."""
        return cls(given.every, given.rest)
