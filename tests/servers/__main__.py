"""Hold servers open for a person to try things on.

    python -m tests.servers postgresql mysql

prints ``alias url`` for a new database on each, and waits for Ctrl-C or SIGTERM; then
the databases are dropped, and what was started is stopped.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
from contextlib import ExitStack, suppress

from tests.servers import DATABASES, ServerUnavailable, provide


def main() -> None:
    """Provide the databases named on the command line until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m tests.servers")
    parser.add_argument("database", nargs="*", help=f"of {', '.join(DATABASES)}; default: all")
    databases = parser.parse_args().database or DATABASES
    if unknown := set(databases).difference(DATABASES):
        parser.error(f"unknown database: {', '.join(sorted(unknown))}")

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    with suppress(KeyboardInterrupt), ExitStack() as held:
        for database in databases:
            hold(database, held)
        while True:
            signal.pause()


def hold(database: str, held: ExitStack) -> None:
    """Print a new database's URL; drop the database when the stack is closed."""
    try:
        server = provide(database)
    except ServerUnavailable as error:
        sys.exit(str(error))
    held.callback(server.stop)
    name = f"sa_jobqueue_{secrets.token_hex(4)}"
    url = server.create_database(name)
    held.callback(server.drop_database, name)
    sys.stdout.write(f"{database} {url.render_as_string(hide_password=False)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
