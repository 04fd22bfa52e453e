"""``schedules``: when they run, and what was missed; to pause one, to resume it, to run it now."""

from __future__ import annotations

import click

from ..model.columns import first_line
from ..model.keys import queue_name
from ..schedules import ScheduleInfo, Schedules
from .command import Place, ask, command, json_option, text, yes_option
from .printing import print_json, print_table, time_text


@command(
    text("--pause", "Pause this schedule."),
    text("--resume", "Resume this schedule."),
    text("--run", "Insert a job of this schedule now. Its ticks stay."),
    yes_option,
    json_option,
)
def schedules(
    at: Place, pause: str | None, resume: str | None, run: str | None, yes: bool, as_json: bool
) -> None:
    """List schedules, or change one.

    They are those of the application that the queues belong to.
    """
    listed = _schedules_beside(at)
    if pause is not None:
        ask(f"pause the schedule {pause}: it will insert no jobs", yes=yes)
        if not at.write(lambda session: listed.pause(session, pause)):
            _tell_unchanged(f"the schedule {pause} was paused already")
    if resume is not None:
        ask(f"resume the schedule {resume}: it will insert jobs again", yes=yes)
        if not at.write(lambda session: listed.resume(session, resume)):
            _tell_unchanged(f"the schedule {resume} was not paused")
    if run is not None:
        queues = {queue_name(queue): queue for queue in at.queues.values()}
        named = {info.name: info.queue for info in at.read(listed.all)}
        queue = queues.get(named.get(run, ""), next(iter(queues.values())))
        ask(f"insert a job of the schedule {run} into {queue_name(queue)}", yes=yes)
        at.write(lambda session: listed.run_now(session, run, queue))
    infos = at.read(listed.all)
    if as_json:
        print_json([vars(info) for info in infos])
        return
    rows = (
        (
            *(it.name, it.queue, f"{it.cron} {it.timezone}"),
            *(time_text(it.next_tick), time_text(it.last_tick), _state(it)),
        )
        for it in infos
    )
    print_table("schedule", "queue", "times", "next (UTC)", "last (UTC)", "state", rows=rows)


def _schedules_beside(at: Place) -> Schedules:
    """Return the schedules in the metadata of the first queue's table.

    Raises:
        ClickException: there are none; names the way out.
    """
    queue = next(iter(at.queues.values()))
    found = Schedules.beside(queue)
    if found is None:
        raise click.ClickException(
            f"the metadata of {queue.mapping} has no schedules: make Schedules(metadata) with the "
            "metadata of its table"
        )
    return found


def _tell_unchanged(what: str) -> None:
    click.echo(f"{what}: nothing has changed", err=True)  # what is printed may be JSON


def _state(info: ScheduleInfo) -> str:
    words = ["paused" if info.paused else "runs"]
    if info.skipped_from is not None:
        gap = f"{time_text(info.skipped_from)} until {time_text(info.skipped_to)}"
        words.append(f"missed {gap} UTC")
    if info.last_error is not None:
        words.append(f"failed: {first_line(info.last_error)}")
    return ", ".join(words)
