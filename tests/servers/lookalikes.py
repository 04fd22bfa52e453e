"""Products that answer as MySQL or PostgreSQL do: OceanBase's seekdb, and PGlite.

    with look_alike("seekdb") as url:
        create_engine(url)

The package pylibseekdb of PyPI has the server seekdb in it; npm installs PGlite into a folder that
git ignores.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import URL, make_url

from tests.servers.errors import NotHere
from tests.servers.given import REPOSITORY
from tests.servers.keeping import LOCALHOST, Binaries, free_ports, make_folder
from tests.servers.node import Node

#: The database that each of them has.
LOOK_ALIKES = {
    "seekdb": f"mysql+pymysql://root@{LOCALHOST}/test",
    "pglite": f"postgresql+psycopg2://postgres@{LOCALHOST}/postgres",
}

PGLITE = REPOSITORY / ".servers" / "pglite"
PGLITE_PACKAGES = ("@electric-sql/pglite@0.5", "@electric-sql/pglite-socket@0.2")


@dataclass(frozen=True, kw_only=True)
class SeekDB(Binaries):
    stop_signal: signal.Signals = signal.SIGKILL

    def serve(self, folder: Path, *, port: int) -> tuple[str, ...]:
        package = find_spec("pylibseekdb")
        if package is None or package.origin is None:
            raise NotHere("seekdb is not installed: pip install pylibseekdb")
        base = folder / "data"  # in which it makes a folder with the name of our log
        base.mkdir()
        sizes = ("--parameter", "datafile_size=1G", "--parameter", "log_disk_size=2G")
        program = str(Path(package.origin).with_name("seekdb"))
        return (program, "--nodaemon", "--port", str(port), "--base-dir", str(base), *sizes)


class PGlite(Binaries):
    def serve(self, folder: Path, *, port: int) -> tuple[str, ...]:
        program = PGLITE / "node_modules" / ".bin" / "pglite-server"
        if not program.exists():
            npm = shutil.which("npm")
            if npm is None:
                raise NotHere("PGlite is installed by npm: install Node.js")
            command = (npm, "install", "--no-audit", "--no-fund", "--prefix", str(PGLITE))
            subprocess.run((*command, *PGLITE_PACKAGES), check=True, capture_output=True)
        return (str(program), "--port", str(port), "--max-connections", "20")


@contextmanager
def look_alike(name: str) -> Iterator[URL]:
    """Run a look-alike, and give the URL of its database.

    Raises:
        NotHere: it cannot be installed here.
    """
    url = make_url(LOOK_ALIKES[name]).set(port=free_ports(1)[0])
    binaries = SeekDB() if name == "seekdb" else PGlite()
    server = Node(name, make_folder(name), url, binaries)
    try:
        server.start()
        yield url
    finally:
        server.stop()
