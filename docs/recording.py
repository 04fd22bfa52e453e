"""Record two workers on one queue, of which one is killed, as an animated SVG.

    python docs/recording.py docs/images/recording.svg

It starts two processes of ``sa-jobqueue work`` on a SQLite database, and kills one of them by
SIGKILL. Each frame is what ``sa-jobqueue top`` draws at that moment, twice as fast as it was. The
run takes half a minute.
"""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from html import escape
from io import StringIO
from itertools import groupby
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.segment import Segment
from rich.text import Text
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from sa_jobqueue.cli.see import picture
from sa_jobqueue.counts import overview

SHOP = '''
"""A shop that takes a fifteenth of a second to send an email."""

import time

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin, JobQueue, ScheduleMixin
from sa_jobqueue.control import control_tables


class Base(DeclarativeBase):
    pass


class Email(JobMixin, ScheduleMixin, Base):
    __tablename__ = "email"
    __queue_args__ = {"failed_index": True}
    id: Mapped[int] = mapped_column(primary_key=True)


control_tables(Base.metadata)
outbox = JobQueue(Email)


@outbox.handler
def send(email: Email) -> None:
    time.sleep(1 / 15)
'''

JOBS = 300
WORK = ("work", "shop:outbox", "--limit", "20")
KILL_AFTER = 4  # seconds
LONGEST = 90  # seconds

WIDTH = 78  # characters
CHARACTER, LINE = 8.4, 20  # pixels
COLORS = {"red": "#ff7b72", "yellow": "#e3b341", "bold": "#ffffff", "dim": "#8b949e"}
PLAIN, GROUND = "#d0d7de", "#14181d"
SECONDS_PER_FRAME = 0.5
LAST_FRAME = 4  # seconds


def main(target: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        frames = list(record(Path(folder)))
    Path(target).write_text(animation(frames), encoding="utf-8")


# -- the run ------------------------------------------------------------------


def record(folder: Path) -> Iterator[list[list[Segment]]]:
    """Run the workers; yield what the terminal shows, once a second."""
    (folder / "shop.py").write_text(SHOP, encoding="utf-8")
    sys.path.insert(0, str(folder))
    shop = importlib.import_module("shop")
    url = f"sqlite:///{folder / 'shop.db'}"
    engine = create_engine(url)
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    shop.Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        shop.outbox.enqueue(session, [{} for _ in range(JOBS)])
    workers = [start_worker(folder, url) for _ in range(2)]
    try:
        yield from watch(engine, shop.outbox, workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def start_worker(folder: Path, url: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sa_jobqueue", *WORK, "--url", url]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)


def watch(
    engine: Engine, outbox: object, workers: list[subprocess.Popen[bytes]]
) -> Iterator[list[list[Segment]]]:
    said = [command_line(f"sa-jobqueue {' '.join(WORK)} &   # twice")]
    deadline = time.monotonic() + LONGEST
    kill_at = None
    while time.monotonic() < deadline:
        with Session(engine) as session:
            (seen,) = overview(session, [outbox])
        if kill_at is None:
            if len(seen.workers or ()) < len(workers):
                continue  # they are starting
            kill_at = time.monotonic() + KILL_AFTER
        if time.monotonic() > kill_at and workers[0].poll() is None:
            workers[0].send_signal(signal.SIGKILL)
            workers[0].wait()
            said.append(command_line(f"kill -9 {workers[0].pid}"))
        top = [command_line("sa-jobqueue top shop:outbox"), picture({"outbox": seen}, "shop.db")]
        if not seen.due.number and not seen.claimed.number:
            yield lines(Group(*said, *top, *counted(engine)))
            return
        yield lines(Group(*said, *top))
        time.sleep(1)
    raise SystemExit("jobs are left")


def counted(engine: Engine) -> list[Text]:
    query = "SELECT status, count(*) FROM email GROUP BY status"
    with engine.connect() as connection:
        rows = connection.execute(text(query)).all()
    return [command_line(f'sqlite3 shop.db "{query}"'), *(Text(f"{a}|{b}") for a, b in rows)]


def command_line(command: str) -> Text:
    return Text.assemble(("$ ", "dim"), (command, "bold"))


def lines(shown: RenderableType) -> list[list[Segment]]:
    console = Console(width=WIDTH, file=StringIO(), color_system="standard")
    return console.render_lines(shown, pad=False)


# -- the picture --------------------------------------------------------------


def animation(frames: list[list[list[Segment]]]) -> str:
    """Return an SVG that shows one frame after the other, without a script or a font of the web.

    Whoever asks for less motion sees the last frame.
    """
    height = (max(map(len, frames)) + 1.5) * LINE
    total = SECONDS_PER_FRAME * (len(frames) - 1) + LAST_FRAME
    share = 100 * SECONDS_PER_FRAME / total
    body = "\n".join(frame(number, shown) for number, shown in enumerate(frames))
    last = len(frames) - 1
    delays = "\n".join(
        f".f{number} {{ animation-delay: {number * SECONDS_PER_FRAME:.1f}s }}"
        for number in range(last)
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * CHARACTER + 24:.0f} {
        height:.0f}" font-family="ui-monospace, monospace" font-size="14">
<title>Two workers handle {JOBS} jobs. One of them is killed: its jobs are reaped and handled by the
other one, and all {JOBS} jobs are done.</title>
<style>
text {{ fill: {PLAIN}; white-space: pre }}
.f {{ visibility: hidden; animation: show {total:.1f}s step-end infinite }}
.f{last} {{ animation-name: last }}
@keyframes show {{ 0% {{ visibility: visible }} {share:.2f}% {{ visibility: hidden }} }}
@keyframes last {{ 0% {{ visibility: hidden }} {share * last:.2f}% {{ visibility: visible }} }}
{delays}
@media (prefers-reduced-motion) {{
  .f {{ animation: none }}
  .f{last} {{ visibility: visible }}
}}
</style>
<rect width="100%" height="100%" rx="8" fill="{GROUND}"/>
{body}
</svg>
"""


def frame(number: int, shown: list[list[Segment]]) -> str:
    rows = "\n".join(
        f'<text x="12" y="{(row + 1.5) * LINE:.0f}">{"".join(spans(line))}</text>'
        for row, line in enumerate(shown)
    )
    return f'<g class="f f{number}">\n{rows}\n</g>'


def spans(line: list[Segment]) -> Iterator[str]:
    for color, segments in groupby(line, key=color_of):
        shown = escape("".join(segment.text for segment in segments).rstrip("\n"), quote=False)
        yield f'<tspan fill="{color}">{shown}</tspan>' if color else shown


def color_of(segment: Segment) -> str | None:
    words = str(segment.style).split()
    return next((COLORS[word] for word in words if word in COLORS), None)


if __name__ == "__main__":
    main(sys.argv[1])
