"""``request-stop``: ask the workers that have jobs to stop them."""

from __future__ import annotations

from typing import Any

import click
from sqlalchemy.orm import Session

from ..control import request_stop as ask_to_stop
from ..control.tables import tables_for
from .asking import yes_option
from .change_jobs import keys_argument, named, opened
from .engine import require_table
from .options import assume_locks_option, json_option, queue_argument, url_option


@click.command(name="request-stop")
@queue_argument
@keys_argument
@url_option
@assume_locks_option
@yes_option
@json_option
def request_stop(
    queue: str, keys: tuple[str, ...], url: str | None, yes: bool, as_json: bool
) -> None:
    """Ask workers to stop claimed jobs of MODULE:QUEUE.

    Give the keys of the jobs. A handler stops if it checks job_context().asked_to_stop. Jobs that
    nobody has claimed are left alone.
    """
    change = opened(queue, url, "request-stop")
    require_table(change.engine, tables_for(None, change.queue.mapping).stops)
    named(keys, False, "")
    change.of_keys(keys, _ask_for_each, yes=yes, as_json=as_json, what="ask the workers to stop")


def _ask_for_each(session: Session, jobs: list[Any]) -> list[Any]:
    """Ask for the end of each job that is claimed; return those jobs."""
    return [job for job in jobs if ask_to_stop(session, job)]
