"""Make the traces that the tests replay: ``python -m tests.model --traces 20 --steps 40``."""

from __future__ import annotations

import argparse

from tests.model.simulator import make_traces
from tests.model.traces import keep

#: The configurations whose traces are replayed: on the three servers, and on SQLite.
CONFIGURATIONS = ("servers", "sqlite")


def main() -> None:
    """Write the traces of both configurations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    for configuration in CONFIGURATIONS:
        keep(
            configuration,
            make_traces(configuration, count=given.traces, steps=given.steps, seed=given.seed),
        )


main()
