"""The console script ``sa-jobqueue``, also ``python -m sa_jobqueue``."""

from __future__ import annotations

import sys

NEEDED = ("click", "rich")


def main() -> None:
    """Run the command line, or say how to install what it needs."""
    try:
        from .cli import cli
        from .cli.processes import OwnProcess
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in NEEDED:
            raise
        sys.exit('the command line needs click and rich: pip install "sa_jobqueue[cli]"')
    cli(prog_name="sa-jobqueue", obj=OwnProcess())


if __name__ == "__main__":
    main()
