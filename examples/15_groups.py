"""A report is written when all of its parts have ended, however many workers there are.

    python examples/15_groups.py
    python examples/15_groups.py --url postgresql+psycopg2://user@host/database

Two reports are enqueued, each with its parts. One part of the second report is cancelled by its
handler. Its report waits: nobody would want a report with a gap. The part is then mended and tried
again, and the report is written.

The comment at the end shows the output.
"""

from __future__ import annotations

import argparse

from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, retry
from sa_jobqueue.groups import GroupMixin, GroupProgress, WaitingMixin, after, group_progress
from sa_jobqueue.worker import Cancel, Worker


class Base(DeclarativeBase):
    """The base of this example's tables."""


class Part(GroupMixin, JobMixin, Base):
    """A part of a report: the sales of a shop."""

    __tablename__ = "example_part"

    id: Mapped[int] = mapped_column(primary_key=True)
    report_id: Mapped[int]
    sales: Mapped[int]


class Report(WaitingMixin, JobMixin, Base):
    """A report on all shops."""

    __tablename__ = "example_report"

    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int] = mapped_column(default=0)


parts, reports = JobQueue(Part), JobQueue(Report)


@parts.handler
def check(part: Part) -> Cancel | None:
    """Look at a part: no shop has sold less than nothing."""
    return Cancel("less than nothing") if part.sales < 0 else None


@reports.handler(transactional=True)
def write(session: Session, report: Report) -> None:
    """Add up the parts."""
    total = select(func.sum(Part.sales)).where(Part.report_id == report.id)
    report.total = session.scalar(total) or 0


def text(progress: GroupProgress) -> str:
    """Say how far a group is."""
    return f"{progress.done} of {progress.total} parts done, {progress.failed} failed"


def main(url: str) -> None:
    """Work on two reports, of which one waits until its part is mended."""
    engine = create_engine(url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        first, second = Report(id=1), Report(id=2)
        good = [Part(report_id=1, sales=sales) for sales in (10, 20, 30)]
        bad = [Part(report_id=2, sales=sales) for sales in (5, -7)]
        groups = [after(session, good, then=first), after(session, bad, then=second)]

    Worker(engine, [reports, parts], drain=True).run()

    with Session(engine) as session:
        for group in groups:
            print(text(group_progress(session, group)))
        for report in session.scalars(select(Report).order_by(Report.id)):
            print("report", report.id, report.status, report.total)

    with Session(engine) as session, session.begin():
        part = session.scalars(select(Part).where(Part.status == "cancelled")).one()
        part.sales = 7
        retry(session, part)

    Worker(engine, [reports, parts], drain=True).run()

    with Session(engine) as session:
        print(text(group_progress(session, groups[1])))
        report = session.get_one(Report, 2)
        print("report", report.id, report.status, report.total)
    Base.metadata.drop_all(engine)
    engine.dispose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="sqlite:///example_groups.db")
    main(parser.parse_args().url)

# Output:
#
# 3 of 3 parts done, 0 failed
# 1 of 2 parts done, 1 failed
# report 1 done 60
# report 2 waiting 0
# 2 of 2 parts done, 0 failed
# report 2 done 12
