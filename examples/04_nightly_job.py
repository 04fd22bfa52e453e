"""Every machine starts a nightly job; a named lock makes sure that only one runs it.

    python examples/04_nightly_job.py
    python examples/04_nightly_job.py --url mysql+pymysql://user@host/database

Three processes stand for three machines. The comment at the end shows the output.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from datetime import timedelta
from multiprocessing.synchronize import Event
from pathlib import Path

from sqlalchemy import create_engine

from sa_jobqueue import named_lock

#: The server may need a moment to notice a death and free the lock.
PATIENCE = timedelta(seconds=1)


def start(machine: str, url: str, working: Event, enough: Event) -> None:
    """Start the nightly job as cron would; the machine that gets the lock runs it."""
    engine = create_engine(url)
    lock = named_lock(engine, "nightly clean-up")
    if not lock.acquire(timeout=PATIENCE):
        print(f"{machine}: another machine runs it, nothing to do", flush=True)
        return
    print(f"{machine}: begins", flush=True)
    working.set()
    enough.wait()
    print(f"{machine}: is done", flush=True)
    lock.release()


def main() -> None:
    """Run the nightly job on a database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="default: an SQLite file in a temporary folder")
    with tempfile.TemporaryDirectory() as folder:
        url = parser.parse_args().url or f"sqlite:///{Path(folder) / 'nightly.db'}"
        create_engine(url).connect().close()
        run(url)


def run(url: str) -> None:
    """Start the job on machines 1 and 2; kill machine 1 while it works; start machine 3."""
    context = multiprocessing.get_context("spawn")
    working, never, enough = context.Event(), context.Event(), context.Event()

    def process(machine: str, until: Event) -> multiprocessing.process.BaseProcess:
        started = context.Process(target=start, args=(machine, url, working, until))
        started.start()
        return started

    crashing = process("machine 1", never)
    working.wait()
    process("machine 2", enough).join()

    crashing.kill()
    crashing.join()
    print("machine 1: loses its power", flush=True)
    working.clear()
    last = process("machine 3", enough)
    working.wait()
    enough.set()
    last.join()


if __name__ == "__main__":
    main()

# Output:
#
# machine 1: begins
# machine 2: another machine runs it, nothing to do
# machine 1: loses its power
# machine 3: begins
# machine 3: is done
