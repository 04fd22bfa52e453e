"""``pause``, ``resume`` and ``workers``: who works, and on what."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from ..control import Pause, WorkerInfo, paused
from ..control import pause as pause_queue
from ..control import resume as resume_queue
from ..control import workers as list_workers
from ..control.tables import tables_for
from ..model.keys import queue_name
from ..owners.alive import OwnerState
from .command import Place, ask, command, json_option, yes_option
from .printing import print_json, print_table, right, time_text
from .see import pause_text


@command(yes_option, json_option)
def pause(at: Place, yes: bool, as_json: bool) -> None:
    """Stop all workers from claiming jobs.

    Handlers that run finish their jobs.
    """
    ask(f"pause {_names(at)}: {_live(at)} will claim no more of its jobs", yes=yes)
    _change(at, pause_queue, True, ("is paused", "was paused already"), as_json=as_json)


@command(yes_option, json_option)
def resume(at: Place, yes: bool, as_json: bool) -> None:
    """Let workers claim jobs again."""
    ask(f"resume {_names(at)}: {_live(at)} will claim its jobs again", yes=yes)
    _change(at, resume_queue, False, ("is resumed", "was not paused"), as_json=as_json)


@command(json_option)
def workers(at: Place, as_json: bool) -> None:
    """List workers and paused queues.

    They are those of the applications that the queues belong to.
    """
    found, pauses = _workers(at), _pauses(at)
    if as_json:
        each = [{**vars(it), "state": it.state.name.lower()} for it in found]
        print_json({"workers": each, "paused": [vars(it) for it in pauses]})
        return
    columns = ("worker", "state", "host", "pid", "queues", right("jobs"), "seen (UTC)")
    rows = (
        (
            *(it.name, it.state.name.lower(), it.host, it.pid),
            *(", ".join(it.queues), f"{it.jobs:,}", time_text(it.seen_at)),
        )
        for it in found
    )
    print_table(*columns, rows=rows)
    for pause in pauses:
        click.echo(pause_text(pause.queue, pause.since))


def _names(at: Place) -> str:
    return ", ".join(map(queue_name, at.queues.values()))


def _tables(at: Place) -> list[Any]:
    """Return the control tables of the queues, each once; queues without them are an error."""
    found = (tables_for(None, queue.mapping) for queue in at.queues.values())
    return list({id(tables): tables for tables in found}.values())


def _workers(at: Place) -> list[WorkerInfo]:
    return at.read(
        lambda session: [
            each for tables in _tables(at) for each in list_workers(session, tables=tables)
        ]
    )


def _pauses(at: Place) -> list[Pause]:
    return at.read(
        lambda session: [each for tables in _tables(at) for each in paused(session, tables=tables)]
    )


def _live(at: Place) -> str:
    """Count the workers of the queues that are alive, and those of which this is not known."""
    names = set(map(queue_name, at.queues.values()))
    states = [each.state for each in _workers(at) if names.intersection(each.queues)]
    alive, unknown = states.count(OwnerState.ALIVE), states.count(OwnerState.UNKNOWN)
    text = "1 live worker" if alive == 1 else f"{alive:,} live workers"
    return f"{text} and {unknown:,} of unknown state" if unknown else text


def _change(
    at: Place,
    verb: Callable[..., bool],
    pauses: bool,
    told: tuple[str, str],
    *,
    as_json: bool,
) -> None:
    """Pause or resume each queue; print what this changed."""
    done = {queue_name(queue): at.write(partial(verb, queue=queue)) for queue in at.queues.values()}
    if as_json:
        print_json([{"queue": it, "paused": pauses, "changed": done[it]} for it in done])
        return
    for name, changed in done.items():
        click.echo(f"{name} {told[not changed]}")
