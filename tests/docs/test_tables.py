"""Tables, numbers and commands of the pages, compared with the code: wrong ones mislead."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

import click
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from sqlalchemy import create_engine

import sa_jobqueue
from sa_jobqueue import TRANSITIONS, ArgumentError, JobStatus

# Inner: the diagram of bulk loads is compared with the table that the manager obeys.
from sa_jobqueue.bulk.log import TRANSITIONS as LOAD_TRANSITIONS
from sa_jobqueue.cli import cli
from sa_jobqueue.doctor import examine

# Inner: the options of a class and their defaults stand in no public place.
from sa_jobqueue.model.status import QueueArgs
from sa_jobqueue.prometheus import QueueCollector, count_events
from tests.models import Email

from .markdown import ROOT, code_blocks, page, table


def test_the_page_of_the_doctor_explains_each_check() -> None:
    explained = [line["check"] for line in table(page("docs/doctor.md"), "check")]

    with pytest.raises(ArgumentError) as refused:
        examine(create_engine("sqlite://"), Email, checks=["?"])
    known = re.findall(r"\w+", str(refused.value).partition(" of ")[2].partition(", and not")[0])

    assert sorted(explained) == sorted(known)


def drawn(name: str) -> set[tuple[str, str, str]]:
    """Read the arrows of a page's state diagram: from, to, and verb."""
    (diagram,) = code_blocks(page(name), "mermaid")
    return set(re.findall(r"^\s*(\w+) --> (\w+) : (\w+)$", diagram, re.M))


def changes(transitions: Mapping[str, Iterable[tuple[str, str]]]) -> set[tuple[str, str, str]]:
    """Give the same of the code."""
    return {
        (str(here), str(there), verb)
        for verb, pairs in transitions.items()
        for here, there in pairs
    }


def test_the_diagrams_show_every_transition_and_no_other() -> None:
    public = {verb: TRANSITIONS[verb] for verb in TRANSITIONS if verb in sa_jobqueue.__all__}
    loads = {verb: pairs.items() for verb, pairs in LOAD_TRANSITIONS.items()}

    assert drawn("docs/internals/architecture.md") == changes(public)
    assert drawn("docs/bulk.md") == changes(loads)


def test_the_drawn_life_of_a_job_has_the_changes_of_the_code() -> None:
    drawing = page("docs/images/job-life.svg")

    arrows = {tuple(found.split()) for found in re.findall(r'data-change="([^"]+)"', drawing)}

    left_out = {change for change in changes(TRANSITIONS) - arrows if change[0] == "claimed"}
    assert arrows <= changes(TRANSITIONS)
    assert left_out == {("claimed", "failed", "reap")}
    assert set(re.findall(r'data-status="(\w+)"', drawing)) == set(JobStatus)


def test_the_tables_have_each_metric_with_its_labels() -> None:
    gauges = QueueCollector(create_engine("sqlite://"), [Email]).describe()
    families = [gauge for gauge in gauges if isinstance(gauge, GaugeMetricFamily)]
    registry = CollectorRegistry()
    count_events([Email], registry=registry)
    counters = [c for c in registry._collector_to_names if isinstance(c, MetricWrapperBase)]

    rows = re.findall(
        r"^\| `(jobqueue_\w+)` \| ([\w, ]+) \| (.+) \|$", page("docs/observability.md"), re.M
    )
    listed = {name.removesuffix("_total"): labels.split(", ") for name, labels, _ in rows}

    assert listed == {
        **{gauge.name: list(gauge._labelnames) for gauge in families},
        **{counter._name: list(counter._labelnames) for counter in counters},
    }


def test_five_alerts_ask_for_metrics_that_there_are() -> None:
    listed = re.findall(r"^\| `(jobqueue_\w+)` \|", page("docs/observability.md"), re.M)

    (rules,) = (
        block for block in code_blocks(page("docs/production.md"), "yaml") if "alert:" in block
    )

    assert rules.count("- alert: ") == 5
    assert set(re.findall(r"jobqueue_\w+", rules)) <= set(listed)


def test_the_table_of_queue_options_is_what_a_class_can_have() -> None:
    rows = table(page("docs/reference/queue-args.md"), "option")

    defaults = {row["option"].strip("`"): row["default"] for row in rows}

    fields = QueueArgs.__dataclass_fields__
    assert list(defaults) == list(fields)
    for option, default in defaults.items():
        assert default == default_text(getattr(QueueArgs(), option)), option


def default_text(value: object) -> str:
    """Return a default as the table writes it."""
    if isinstance(value, bool):
        return f"`{value}`"
    if isinstance(value, timedelta):
        return f"{value // timedelta(minutes=1)} minutes"
    return str(value) if isinstance(value, int) else "none"


def logged(source: str) -> Iterator[tuple[str, str]]:
    """List logger and level of every line that a module logs."""
    for name, logger in re.findall(r'^(\w+) = logging.getLogger\("(.+)"\)$', source, re.M):
        levels = re.findall(rf"\b{name}\.(debug|info|warning|error|critical)\(", source)
        yield from ((logger, level.upper()) for level in levels)


def test_the_table_of_loggers_is_what_the_code_logs() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "sa_jobqueue").rglob("*.py")]

    written = {
        (line["logger"].strip("`"), line["level"])
        for line in table(page("docs/reference/observing.md"), "logger")
    }

    assert written == {line for source in sources for line in logged(source)}


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands() -> Iterator[tuple[str, str]]:
    """Yield each line of the pages that is a command, with the name of its page."""
    for path in PAGES:
        for block in code_blocks(path.read_text(encoding="utf-8"), "sh"):
            for line in block.splitlines():
                _, name, arguments = line.partition("sa-jobqueue ")
                if name and not line.startswith("python"):
                    yield path.name, arguments


@pytest.mark.parametrize(("name", "arguments"), list(commands()))
def test_a_command_on_a_page_is_understood(name: str, arguments: str) -> None:
    verb, *rest = shlex.split(arguments, comments=True)
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None, verb

    command.make_context(verb, rest)
