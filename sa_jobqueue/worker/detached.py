"""Log what a handler sets on its detached job: the database never gets these changes."""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy.orm.attributes import instance_state

from .in_hand import InHand
from .log_records import job_fields

log = logging.getLogger("sa_jobqueue.worker")


def log_changes(in_hand: InHand[Any]) -> None:
    """Log the attributes that a handler has set: their new values are lost.

    Call it only for a modified job.
    """
    state = instance_state(in_hand.job)
    if state.session is not None:
        return
    saved = {column.key for column in state.mapper.column_attrs}
    saved |= {each.key for each in state.mapper.relationships if not each.viewonly}
    names = sorted(saved.intersection(state.committed_state))
    if names:
        log.error(
            "a handler has set %s of %s %s. The job is detached, and this change is not saved: "
            "declare the handler with transactional=True, or write in a session of your own",
            ", ".join(names),
            state.class_.__name__,
            ", ".join(map(repr, state.identity or ())),
            extra=job_fields(in_hand),
        )
