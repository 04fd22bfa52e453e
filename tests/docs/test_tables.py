"""Tables, numbers and commands of the pages, compared with the code: wrong ones mislead."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from datetime import timedelta

import click
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from sqlalchemy import create_engine

import sa_jobqueue
from sa_jobqueue.bulk.log import TRANSITIONS as LOAD_TRANSITIONS
from sa_jobqueue.cli import cli
from sa_jobqueue.doctor.run_checks import CHECKS
from sa_jobqueue.model.status import QueueArgs
from sa_jobqueue.prometheus import QueueCollector, count_events
from tests.models import Email

from .markdown import ROOT, code_blocks, page, table


def test_the_page_of_the_doctor_explains_each_check() -> None:
    explained = [line["check"] for line in table(page("docs/doctor.md"), "check")]

    assert sorted(explained) == sorted(CHECKS)


def test_the_diagram_of_bulk_loads_shows_every_transition_and_no_other() -> None:
    (diagram,) = code_blocks(page("docs/bulk.md"), "mermaid")

    drawn = set(re.findall(r"^\s*(\w+) --> (\w+) : (\w+)$", diagram, re.M))

    assert drawn == {
        (str(here), str(there), verb)
        for verb, changes in LOAD_TRANSITIONS.items()
        for here, there in changes.items()
    }
    assert len(drawn) == diagram.count("-->")


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


def test_the_policies_delay_as_the_table_of_retries_says() -> None:
    known = {**vars(sa_jobqueue), "timedelta": timedelta}
    lines = table(page("docs/retries.md"), "policy")
    units = (timedelta(minutes=1), timedelta(seconds=1))
    for line, unit in zip(lines, units, strict=False):
        policy = eval(line["policy"].strip("`"), known)
        numbers = re.findall(r"\d+", line["after the attempts 1, 2, 3, .."])
        for attempt, number in enumerate(numbers[:3], start=1):
            assert 0.9 <= policy(attempt) / (int(number) * unit) <= 1, (line, attempt)
        assert policy(99) <= timedelta(hours=1)


def rates(adapter: str) -> list[float]:
    """Return what an adapter drains a second, in batches of 1, 10 and 100."""
    rows = table(page("docs/performance.md"), "jobs a second = ratio to the loop")
    row = next(row for row in rows if row["jobs a second = ratio to the loop"] == adapter)
    cells = (row[f"batch {size}"] for size in (1, 10, 100))
    return [float(cell.split(" ")[0].replace(",", "")) for cell in cells]


def test_the_ratios_to_pgqueuer_are_those_that_were_measured() -> None:
    ours, theirs = rates("PostgreSQL, Worker"), rates("PostgreSQL, PgQueuer 1.6.0")

    one, ten, hundred = (f"{a / b:.2f}" for a, b in zip(ours, theirs, strict=True))

    assert f"drained {one}, {ten} and {hundred} times" in " ".join(
        page("docs/comparison.md").split()
    )


LEVELS = ("debug", "info", "warning", "error", "critical")


def logged(source: str) -> Iterator[tuple[str, str]]:
    """List logger and level of every line that a module logs."""
    nodes = list(ast.walk(ast.parse(source)))
    loggers = {
        target.id: ast.literal_eval(node.value.args[0])
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "logging.getLogger"
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = ast.unparse(node.func.value)
            if name in loggers and node.func.attr in LEVELS:
                yield loggers[name], node.func.attr.upper()


def test_the_table_of_loggers_is_what_the_code_logs() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "sa_jobqueue").rglob("*.py")]

    written = {
        (line["logger"].strip("`"), line["level"])
        for line in table(page("docs/logging.md"), "logger")
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
