"""``python -m benchmarks NAME``: each module and package beside this one is a benchmark."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import click

import benchmarks

#: What benchmarks are made of.
PARTS = {"__main__", "adapters", "harness"}


@click.group()
def main() -> None:
    """Measure sa_jobqueue beside hand-written SQL and its peers."""


for module in pkgutil.iter_modules(benchmarks.__path__):
    if module.name not in PARTS:
        main.add_command(import_module(f"benchmarks.{module.name}").main)

if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
