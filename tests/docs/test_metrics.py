"""The metrics of docs/observability.md: its tables are those of the code, and its programs run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin
from sa_jobqueue.prometheus import QueueCollector, count_events
from sa_jobqueue.prometheus.counters import COUNTED
from tests.support import until

from .followed import Reader, free_ports, part, reader
from .markdown import page

PAGE = page("docs/observability.md")
ROWS = re.findall(r"^\| `(jobqueue_\w+)` \| ([\w, ]+) \| (.+) \|$", PAGE, re.M)

#: The module that the page takes for granted.
QUEUES = """
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin, JobQueue


class Base(DeclarativeBase):
    pass


class Email(JobMixin, Base):
    __tablename__ = "email"
    id: Mapped[int] = mapped_column(primary_key=True)


engine = create_engine("sqlite:///shop.db", connect_args={"timeout": 60})
outbox = JobQueue(Email)


@outbox.handler
def send(email: Email) -> None:
    pass
"""


class Base(DeclarativeBase):
    """The base of this test's table."""


class Postcard(JobMixin, Base):
    __tablename__ = "metrics_postcard"
    id: Mapped[int] = mapped_column(primary_key=True)


def test_the_tables_have_each_metric_with_its_labels() -> None:
    gauges = QueueCollector(create_engine("sqlite://"), [Postcard]).describe()
    families = [gauge for gauge in gauges if isinstance(gauge, GaugeMetricFamily)]
    registry = CollectorRegistry()
    count_events([Postcard], registry=registry)
    counters = [c for c in registry._collector_to_names if isinstance(c, MetricWrapperBase)]

    listed = {name.removesuffix("_total"): labels.split(", ") for name, labels, _ in ROWS}

    assert listed == {
        **{gauge.name: list(gauge._labelnames) for gauge in families},
        **{counter._name: list(counter._labelnames) for counter in counters},
    }


def test_the_table_has_each_event_that_is_counted() -> None:
    ((_, _, meaning),) = [row for row in ROWS if row[0] == "jobqueue_events_total"]

    assert set(re.findall(r"`(\w+)`", meaning)) == set(COUNTED.values())


def test_the_queries_name_metrics_of_the_tables() -> None:
    names = {name for name, _, _ in ROWS}

    queried = set(re.findall(r"\bjobqueue_[a-z_]+", "".join(re.findall(r"^\|.*$", PAGE, re.M))))

    assert len(queried) >= len(names)
    assert {name.removesuffix("_bucket") for name in queried} == names


def insert_twenty() -> None:
    """Insert twenty jobs into the database of that module."""
    names: dict[str, Any] = {"__name__": "shop.queues"}
    exec(compile(QUEUES, "queues.py", "exec", dont_inherit=True), names)
    names["Base"].metadata.create_all(names["engine"])
    with Session(names["engine"]) as session, session.begin():
        session.add_all([names["Email"]() for _ in range(20)])
    names["engine"].dispose()


class TestPrograms:
    """The programs of the page, with two worker processes or one."""

    @pytest.fixture
    def ports(self) -> dict[str, str]:
        return free_ports("9100")

    @pytest.fixture
    def following(
        self, tmp_path: Path, ports: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Reader]:
        monkeypatch.chdir(tmp_path)
        replaced = {**ports, "/run/shop": str(tmp_path / "counts")}
        environment = {"SA_JOBQUEUE_URL": "sqlite:///shop.db"}
        with reader(tmp_path, replaced=replaced, environment=environment) as following:
            following.write("shop/queues.py", QUEUES)
            insert_twenty()
            yield following

    def expect_twenty_finished(self, ports: dict[str, str]) -> None:
        """See that depth and events are served together, under one label."""

        def is_served() -> bool:
            try:
                found = urlopen(f"http://127.0.0.1:{ports['9100']}/metrics").read().decode()
            except URLError:  # not yet
                return False
            assert "pid=" not in found
            finished = 'jobqueue_events_total{event="finished",queue="email"} 20.0'
            return finished in found and 'jobqueue_due_jobs{queue="email"} 0.0' in found

        until(is_served, 60)

    def test_the_counts_of_two_processes_are_served_with_the_depth(
        self, following: Reader, ports: dict[str, str]
    ) -> None:
        following.follow(part(PAGE, "Count what processes do"))

        self.expect_twenty_finished(ports)
        following.run("sa-jobqueue status shop.queues")

    def test_a_program_serves_its_own_metrics(
        self, following: Reader, ports: dict[str, str]
    ) -> None:
        following.follow(part(PAGE, "Serve metrics from your own program"))

        following.terminals.append(following.open_terminal("python run_worker.py"))
        self.expect_twenty_finished(ports)
