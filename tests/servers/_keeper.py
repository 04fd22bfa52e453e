"""Run a server, and stop it when the process that started it is gone.

A process of its own, from the standard library alone. Its standard input is a pipe from
its starter: it ends when the starter says so, and when the starter is killed, however
hard. (PR_SET_PDEATHSIG would fire when the starting *thread* ends, and is cleared when
the server changes its user.)

    python _keeper.py FOLDER USER STOP_SIGNAL COMMAND...
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from typing import Any

LOOK_EVERY = 0.1
PATIENCE = 20.0


def main(folder: str, user: str, stop_signal: str, *command: str) -> int:
    """Run the command until told to stop, or until it ends by itself."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with open(os.path.join(folder, "log"), "ab") as log:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **as_user(user)
        )
    try:
        while server.poll() is None:
            if select.select([sys.stdin], [], [], LOOK_EVERY)[0]:
                return 0
        # The folder stays, since the starter wants to read the log.
        return server.returncode or 1
    finally:
        if server.poll() is None:
            stop(server, int(stop_signal))
            shutil.rmtree(folder, ignore_errors=True)


def as_user(user: str) -> dict[str, Any]:
    """Return the arguments of subprocess that run a command as another user."""
    if not user:
        return {}
    import pwd

    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": ()}


def stop(server: subprocess.Popen[bytes], stop_signal: int) -> None:
    """Stop the server, by force if it does not react."""
    server.send_signal(stop_signal)
    try:
        server.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
