"""A reader who follows a page: writes its files, types its commands, and looks at what is printed.

- A block of Python that begins with the name of a file, as in ``# jobs.py``, is that file.
- Each line of a block of sh is typed. What runs until Ctrl-C stays in a terminal of its own.
- A block of text was printed: its lines, in their order, with anything for "...". It is looked for
  in what the commands right before it have printed, and is waited for in each open terminal.
"""

from __future__ import annotations

import codecs
import errno
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from sqlalchemy import URL

from tests.servers import debian
from tests.support import until

from .markdown import ROOT, code_blocks, page

_BLOCK = re.compile(r"^```(python|sh|text|ini|dockerfile)\n(.*?)^```", re.M | re.S)
_FILE = re.compile(r"# ([\w/.-]+\.(?:py|ini|csv|service))\n")

#: Commands that run until somebody stops them.
_SERVING = re.compile(
    r"(\w+=\S+ )?(uvicorn |flask .*\brun\b|python run_worker.py|"
    r"sa-jobqueue web |sa-jobqueue metrics .*--port|sa-jobqueue work (?!.*--drain))"
)

#: What a reader does who has installed everything already.
_INSTALLING = re.compile(r"python3 -m venv |\. \.venv/bin/activate|pip install ")

_STYLE = re.compile(r"\x1b\[[\d;]*m|\r")
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")

SECONDS = 120


class Terminal:
    """A command that runs, and what it has printed.

    It prints to a terminal, so that Python writes whole lines, as a reader sees them.
    """

    def __init__(self, line: str, folder: Path, environment: Mapping[str, str]) -> None:
        self.line = line
        self.printed = ""
        ours, its = pty.openpty()
        self.process = subprocess.Popen(
            # Ctrl-C works, also where the tests run in the background of a shell.
            ["env", "--default-signal=INT", "bash", "-c", line],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=its,
            stderr=its,
            start_new_session=True,
        )
        os.close(its)
        self._reading = threading.Thread(target=self._read, args=[ours], daemon=True)
        self._reading.start()

    def _read(self, ours: int) -> None:
        decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        try:
            while read := os.read(ours, 65_536):
                self.printed = _STYLE.sub("", self.printed + decode(read))
        except OSError as ended:  # so Linux says that nobody can write any more
            if ended.errno != errno.EIO:
                raise
        finally:
            os.close(ours)

    def end(self) -> int:
        """Wait for the command's end; return its exit code."""
        try:
            code = self.process.wait(SECONDS)
            self._reading.join(SECONDS)
        finally:
            if self.process.poll() is None:
                self.kill()
        return code

    def interrupt(self) -> int:
        """Press Ctrl-C, wait for the end, and return the exit code."""
        self._signal(signal.SIGINT)
        return self.end()

    def kill(self) -> None:
        """End the command, and what it has started, at once."""
        self._signal(signal.SIGKILL)
        self.process.wait(SECONDS)

    def _signal(self, number: int) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)


class Reader:
    """Follow pages in a folder, which has the files and the database of its reader.

    Args:
        replaced: what this reader writes in the place of words of the page, such as a port.
        installing: False: what the page installs is here already, and the checkout is used.
        environment: what a command finds there beside that of this process.
    """

    def __init__(
        self,
        folder: Path,
        *,
        replaced: Mapping[str, str] | None = None,
        installing: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.terminals: list[Terminal] = []
        self.typed: dict[str, str] = {}
        self._replaced = dict(replaced or {})
        self._installing = installing
        self._printed = ""
        unset = {"SA_JOBQUEUE_URL", "DATABASE_URL"}
        inherited = {name: value for name, value in os.environ.items() if name not in unset}
        self._environment = {
            **inherited,
            "PATH": os.pathsep.join(_path(folder, installing=installing)),
            "PYTHONPATH": "" if installing else str(ROOT),
            "NO_COLOR": "1",
            "COLUMNS": "100",
            **(environment or {}),
        }

    def follow(self, page: str) -> None:
        """Do what a page, or a part of it, says."""
        for language, code in _BLOCK.findall(page):
            file = _FILE.match(code)
            if file is not None:
                self.write(file[1], code[file.end() :])
            elif language == "sh":
                self._printed = ""
                for line in code.splitlines():
                    self.type(line)
            elif language == "text":
                self.expect(code)

    def printed_by(self, beginning: str) -> str:
        """Return what the command that begins so has printed."""
        (printed,) = (text for line, text in self.typed.items() if line.startswith(beginning))
        return printed

    def write(self, name: str, content: str) -> None:
        """Write a file."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._in_own_words(content), encoding="utf-8")

    def type(self, line: str) -> None:
        """Type a command, and wait for its end if it has one."""
        if not self._installing and _INSTALLING.match(line):
            return
        line = self._in_own_words(line)
        if _SERVING.match(line):
            self.terminals.append(self.open_terminal(line))
            self._wait_until_it_listens(line)
        else:
            self.typed[line] = self.run(line, *_codes(line))
            self._printed += self.typed[line]

    def open_terminal(self, line: str) -> Terminal:
        """Run a command until somebody stops it."""
        return Terminal(line, self.folder, self._environment)

    def run(self, line: str, *codes: int) -> str:
        """Run a command to its end, with one of these exit codes; return what it prints."""
        terminal = self.open_terminal(line)
        assert terminal.end() in (codes or (0,)), f"{line}\n{terminal.printed}"
        return terminal.printed.rstrip("\n") + "\n"

    def expect(self, text: str) -> None:
        """See that the lines of a text are printed."""
        pattern = ".*".join(_as_pattern(line) for line in self._in_own_words(text).splitlines())
        sought = re.compile(pattern, re.M | re.S)
        found: Callable[[], bool] = lambda: any(map(sought.search, self._outputs()))  # noqa: E731
        try:
            until(found, SECONDS)
        except AssertionError:
            printed = "\n---\n".join(self._outputs())
            raise AssertionError(f"not printed:\n{text}\nbut:\n{printed}") from None

    def _outputs(self) -> Iterator[str]:
        yield self._printed
        for terminal in self.terminals:
            yield terminal.printed

    def _wait_until_it_listens(self, line: str) -> None:
        port = re.search(r"--port (\d+)", line)
        if port is not None:
            until(lambda: _answers(int(port[1])), SECONDS)

    def _in_own_words(self, text: str) -> str:
        for theirs, ours in self._replaced.items():
            text = text.replace(theirs, ours)
        return text


@contextmanager
def reader(folder: Path, **options: Any) -> Iterator[Reader]:
    """A reader who in the end stops what runs; see :class:`Reader`."""
    found = Reader(folder, **options)
    try:
        yield found
    finally:
        with ExitStack() as stack:
            for terminal in found.terminals:
                stack.callback(terminal.kill)  # where Ctrl-C does not end it
            codes = {terminal.line: terminal.interrupt() for terminal in found.terminals}
    assert {line: code for line, code in codes.items() if code not in _ENDED} == {}


#: Exit codes after Ctrl-C: of a program that ends well, and of one that lets the signal end it.
_ENDED = (0, 130, -signal.SIGINT)


def part(page: str, heading: str) -> str:
    """Return the part of a page below one of its headings, with that line."""
    found = re.search(rf"^(#+) {re.escape(heading)}\n.*?(?=^\1 |\Z)", page, re.M | re.S)
    assert found is not None, heading
    return found[0]


def divided(text: str, *beginnings: str) -> list[str]:
    """Divide a page before lines that begin so."""
    places = [0, *(text.index(f"\n{beginning}") for beginning in beginnings), len(text)]
    return [text[begin:end] for begin, end in pairwise(places)]


#: What makes a folder a project of Alembic's; the page's own files are beside it.
ALEMBIC = {
    "alembic.ini": "[alembic]\nscript_location = migrations\nprepend_sys_path = .\n",
    "migrations/script.py.mako": "",
    "migrations/versions/0001_tables.py": (
        "revision, down_revision = '0001', None\ndef upgrade(): pass\ndef downgrade(): pass\n"
    ),
}


def begin_migrations(following: Reader, imports: str) -> None:
    """Write what Alembic and the tutorial give a project, with the first migration done."""
    (environment,) = (
        block
        for block in code_blocks(page("docs/tutorial.md"), "python")
        if block.startswith("# migrations/env.py")
    )
    for name, content in ALEMBIC.items():
        following.write(name, content)
    own = environment.replace("from models import Base, engine", imports)
    following.write("migrations/env.py", own)
    following.run("alembic stamp 0001")


def shown(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def free_ports(*names: str) -> dict[str, str]:
    """Give a port that is free to each port of a page."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    ports = {
        name: str(opened.getsockname()[1]) for name, opened in zip(names, sockets, strict=True)
    }
    for opened in sockets:
        opened.close()
    return ports


def need_curl() -> None:
    """See that curl is here."""
    if shutil.which("curl") is None:
        debian.install("curl")


def _path(folder: Path, *, installing: bool) -> list[str]:
    """Return where commands are found: what the page installs, or what is here."""
    ours = str(Path(sys.executable).parent)
    others = [place for place in os.environ["PATH"].split(os.pathsep) if place != ours]
    return [str(folder / ".venv" / "bin"), *others] if installing else [ours, *others]


def _codes(line: str) -> tuple[int, ...]:
    """Return the exit codes that a command may end with: the doctor's tell what it has found."""
    return (0, 1, 3) if line.startswith("sa-jobqueue doctor") else (0,)


def _answers(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def _as_pattern(line: str) -> str:
    """Let "..." stand for anything within a line, and a time for any other."""
    parts = (re.escape(_TIME.sub("TIME", part)) for part in line.rstrip().split("..."))
    return "^" + r"[^\n]*".join(parts).replace("TIME", _TIME.pattern) + r"[ \t]*$"
