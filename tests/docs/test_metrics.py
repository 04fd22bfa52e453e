"""The tables of metrics in docs/observability.md are the metrics and labels of the code."""

from __future__ import annotations

import re

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin
from sa_jobqueue.prometheus import QueueCollector, count_events
from sa_jobqueue.prometheus.counters import COUNTED

from .markdown import page

PAGE = page("docs/observability.md")
ROWS = re.findall(r"^\| `(jobqueue_\w+)` \| ([\w, ]+) \| (.+) \|$", PAGE, re.M)


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
