"""A render pipeline: clips are checked, rendered on a farm, and published.

    python examples/08_render_pipeline.py
    python examples/08_render_pipeline.py --url postgresql+psycopg2://user@host/database

A clip is submitted, checked, rendered and published. These are four statuses, and a step leads
from each of them to the next. A worker does the steps. A bad clip takes a branch and is
rejected. Another system, the farm, renders: a step hands the clip off, and the clip waits for
the farm's signal.

Three processes work on all steps; one of them is killed while it works. The main process plays
the farm. Each transition writes a row to a log, in its own transaction. At the end the main
process reads the log and proves that each clip went a legal way to an end.
The comment at the end shows the output.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise
from multiprocessing.synchronize import Event
from pathlib import Path

from sqlalchemy import Engine, create_engine, event, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import String

from sa_jobqueue import JobMixin, RetryMixin, count_by_status
from sa_jobqueue.worker import Worker
from sa_jobqueue.workflow import NotWaiting, Transition, Workflow

CLIPS = 30


class ClipStatus(StrEnum):
    """The statuses of a clip."""

    SUBMITTED = "submitted"
    CHECKING = "checking"
    CHECKED = "checked"
    SENDING = "sending"
    AT_FARM = "at farm"
    RENDERED = "rendered"
    PUBLISHING = "publishing"
    PUBLISHED = "published"
    REJECTED = "rejected"


class Base(DeclarativeBase):
    """The base of this example's tables."""


class Clip(JobMixin, RetryMixin, Base):
    """A clip; its indexes need the statuses in __queue_args__."""

    __tablename__ = "example_clip"
    __queue_args__ = {  # noqa: RUF012 - read once, as __table_args__ is
        "names": {
            "unclaimed": ClipStatus.SUBMITTED,
            "claimed": ClipStatus.CHECKING,
            "done": ClipStatus.PUBLISHED,
        },
        "ready": [ClipStatus.CHECKED, ClipStatus.RENDERED],
        "during": [ClipStatus.SENDING, ClipStatus.PUBLISHING],
    }

    id: Mapped[int] = mapped_column(primary_key=True)
    frames: Mapped[int]


class ClipLog(Base):
    """A row for each transition of a clip."""

    __tablename__ = "example_clip_log"

    id: Mapped[int] = mapped_column(primary_key=True)
    clip_id: Mapped[int] = mapped_column(index=True)
    before: Mapped[str] = mapped_column(String(16))
    after: Mapped[str] = mapped_column(String(16))
    verb: Mapped[str] = mapped_column(String(16))


workflow = Workflow(Clip, ClipStatus, final=[ClipStatus.REJECTED])


@workflow.step(
    ClipStatus.SUBMITTED,
    during=ClipStatus.CHECKING,
    then=ClipStatus.CHECKED,
    branches=[ClipStatus.REJECTED],
)
def check(clip: Clip) -> ClipStatus | None:
    """Take the branch if there is nothing to render."""
    return None if clip.frames else ClipStatus.REJECTED


@workflow.step(ClipStatus.CHECKED, during=ClipStatus.SENDING, then=ClipStatus.AT_FARM)
def send(clip: Clip) -> None:
    """Hand the clip off to the farm; the worker that will be killed waits here."""
    if this_process.doomed is not None:
        this_process.doomed.set()
        time.sleep(3600)


workflow.waiting(ClipStatus.AT_FARM, signals=[ClipStatus.RENDERED])


@workflow.step(ClipStatus.RENDERED, during=ClipStatus.PUBLISHING, then=ClipStatus.PUBLISHED)
def publish(clip: Clip) -> None:
    """Publish the rendered clip."""


@workflow.on_transition
def log_transition(session: Session, transition: Transition) -> None:
    """Log a transition, in the transaction that makes it."""
    (clip_id,) = transition.identity
    session.add(
        ClipLog(
            clip_id=clip_id,
            before=transition.before,
            after=transition.after,
            verb=transition.verb,
        )
    )


class ThisProcess:
    """The state of this process.

    Attributes:
        doomed: the worker that will be killed sets this when it holds clips; None elsewhere.
    """

    doomed: Event | None = None


this_process = ThisProcess()


def open_engine(url: str) -> Engine:
    """Make an engine; on SQLite, set it up for four writers, without waiting for the disk."""
    engine = create_engine(url)
    if engine.url.get_backend_name() == "sqlite":

        @event.listens_for(engine, "connect")
        def set_up(connection: object, record: object) -> None:
            connection.execute("PRAGMA journal_mode = WAL")  # type: ignore[attr-defined]
            connection.execute("PRAGMA synchronous = NORMAL")  # type: ignore[attr-defined]

    return engine


# -- the workers ------------------------------------------------------------


def work(url: str, doomed: Event | None) -> None:
    """Work on all steps until SIGTERM."""
    this_process.doomed = doomed
    worker = Worker(
        open_engine(url),
        workflow,
        limit=3,
        poll=timedelta(seconds=0.1),
        reap_every=timedelta(seconds=1),
    )
    with worker.stopping_on_signals():
        worker.run()


@contextmanager
def workers(url: str, doomed: Event) -> Iterator[list[multiprocessing.process.BaseProcess]]:
    """Start three workers, the first of which will wait in its work; end them afterwards."""
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=work, args=(url, doomed), daemon=True)]
    started += [context.Process(target=work, args=(url, None), daemon=True) for _ in range(2)]
    started[0].start()
    doomed.wait()
    for process in started[1:]:
        process.start()
    try:
        yield list(started)
    finally:
        for process in started:
            process.terminate()
            process.join()


# -- the farm ---------------------------------------------------------------


def deliver(engine: Engine) -> int:
    """Report all clips at the farm as rendered; return how many clips have a final status."""
    with Session(engine) as session:
        at_farm = session.scalars(select(Clip.id).where(Clip.status == ClipStatus.AT_FARM)).all()
        ended = select(func.count()).where(Clip.status.in_(workflow.final)).select_from(Clip)
        count = session.scalars(ended).one()
    for clip_id in at_farm:
        with Session(engine) as session:
            workflow.signal(session, clip_id, ClipStatus.RENDERED)
            session.commit()
    return count


def deliver_twice(engine: Engine, clip_id: int) -> None:
    """Report a clip again after it was published."""
    with Session(engine) as session:
        try:
            workflow.signal(session, clip_id, ClipStatus.RENDERED)
        except NotWaiting as error:
            print(f"a signal that comes twice: clip {clip_id} is {error.status!r} by now")


# -- the proof --------------------------------------------------------------


def prove(engine: Engine) -> None:
    """Read the log, and count the clips that went a legal way to an end."""
    with Session(engine) as session:
        counts = count_by_status(session, Clip)
        log = session.scalars(select(ClipLog).order_by(ClipLog.id)).all()
    print("at the end:", ", ".join(f"{n} {word}" for word, n in counts.items() if n))
    ways: dict[int, list[ClipLog]] = {}
    for entry in log:
        ways.setdefault(entry.clip_id, []).append(entry)
    legal = [entry for entry in log if (entry.before, entry.after, entry.verb) in workflow.arrows]
    whole = [way for way in ways.values() if is_whole(way)]
    print(f"the log: {len(log)} transitions, {len(legal)} legal")
    print(f"clips that went without a gap from submitted to an end: {len(whole)}")
    print("reaped from the killed worker:", Counter(entry.verb for entry in log)["reap"])


def is_whole(way: list[ClipLog]) -> bool:
    """Tell whether each transition begins where the transition before it ended."""
    reaches_end = way[0].before == ClipStatus.SUBMITTED and way[-1].after in workflow.final
    return reaches_end and all(entry.after == later.before for entry, later in pairwise(way))


def main() -> None:
    """Run the pipeline on a database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="default: an SQLite file in a temporary folder")
    with tempfile.TemporaryDirectory() as folder:
        run(parser.parse_args().url or f"sqlite:///{Path(folder) / 'clips.db'}")


def run(url: str) -> None:
    """Submit clips, kill a worker, and play the farm until each clip has a final status."""
    engine = open_engine(url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Clip(frames=number % 10 and 25) for number in range(1, CLIPS + 1)])
    print(f"{CLIPS} clips are submitted, 3 of them empty")

    doomed = multiprocessing.get_context("spawn").Event()
    with workers(url, doomed) as processes:
        while deliver(engine) < CLIPS // 2:
            time.sleep(0.05)
        processes[0].kill()
        print("a worker is killed while it holds 3 clips")
        while deliver(engine) < CLIPS:
            time.sleep(0.05)
    deliver_twice(engine, CLIPS - 1)
    prove(engine)

    Base.metadata.drop_all(engine)
    engine.dispose()


if __name__ == "__main__":
    main()

# Output:
#
# 30 clips are submitted, 3 of them empty
# a worker is killed while it holds 3 clips
# a signal that comes twice: clip 29 is 'published' by now
# at the end: 27 published, 3 rejected
# the log: 201 transitions, 201 legal
# clips that went without a gap from submitted to an end: 30
# reaped from the killed worker: 3
