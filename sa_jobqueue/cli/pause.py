"""``pause`` and ``resume``: keep workers from claiming from a queue, and let them again."""

from __future__ import annotations

import json
from typing import Any

import click
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from ..control import ControlTables, workers
from ..control import pause as pause_queue
from ..control import resume as resume_queue
from ..control.tables import tables_for
from ..model.queue_name import queue_name
from ..owners.alive import OwnerState
from ..queue import JobQueue
from ..sessions.transactions import run_with_retries
from .asking import ask, yes_option
from .engine import open_engine, require_table
from .options import assume_locks_option, json_option, queue_argument, url_option
from .targets import load_queue


@click.command()
@queue_argument
@url_option
@assume_locks_option
@yes_option
@json_option
def pause(queue: str, url: str | None, yes: bool, as_json: bool) -> None:
    """Stop all workers from claiming jobs of MODULE:QUEUE.

    Handlers that run finish their jobs.
    """
    found = load_queue(queue)
    engine, tables = open_control(url, found)
    who = _workers_of(found, engine, tables)
    ask(f"pause {queue_name(found)}: {who} will claim no more of its jobs", yes=yes)
    changed = run_with_retries(engine, lambda session: pause_queue(session, found))
    _tell(found, "is paused" if changed else "was paused already", True, changed, as_json=as_json)


@click.command()
@queue_argument
@url_option
@assume_locks_option
@yes_option
@json_option
def resume(queue: str, url: str | None, yes: bool, as_json: bool) -> None:
    """Let workers claim jobs of MODULE:QUEUE again."""
    found = load_queue(queue)
    engine, tables = open_control(url, found)
    who = _workers_of(found, engine, tables)
    ask(f"resume {queue_name(found)}: {who} will claim its jobs again", yes=yes)
    changed = run_with_retries(engine, lambda session: resume_queue(session, found))
    _tell(found, "is resumed" if changed else "was not paused", False, changed, as_json=as_json)


def open_control(url: str | None, queue: JobQueue[Any]) -> tuple[Engine, ControlTables]:
    """Connect, and find the control tables beside a queue.

    Raises:
        ClickException: they are not in the database.
        ArgumentError: they are not in the metadata.
    """
    tables = tables_for(None, queue.mapping)
    engine = open_engine(url)
    require_table(engine, tables.workers)
    require_table(engine, tables.pauses)
    return engine, tables


def _workers_of(queue: JobQueue[Any], engine: Engine, tables: ControlTables) -> str:
    """Count the workers of a queue that are alive, and those of which this is not known."""
    name = queue_name(queue)
    with Session(engine) as session:
        states = [each.state for each in workers(session, tables=tables) if name in each.queues]
    alive, unknown = states.count(OwnerState.ALIVE), states.count(OwnerState.UNKNOWN)
    text = "1 live worker" if alive == 1 else f"{alive:,} live workers"
    return f"{text} and {unknown:,} of unknown state" if unknown else text


def _tell(queue: JobQueue[Any], what: str, paused: bool, changed: bool, *, as_json: bool) -> None:
    name = queue_name(queue)
    told = {"queue": name, "paused": paused, "changed": changed}
    click.echo(json.dumps(told) if as_json else f"{name} {what}")
