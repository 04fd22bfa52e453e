"""Steering: changes of many jobs, named by key, by status or by owner, in batches.

::

    steering = Steering(engine, outbox)
    changed = steering.change(keys_from(outbox.mapping, ["7", "8"]), outbox.retry)
    for key in steering.retry_failed():
        print(key_text(key))

The command line and the web page both change jobs by it. Each batch is a transaction of its own.

======================  =====================================================
``bulk``                Steering: retry, cancel and release in batches
``keys``                keys as text, and the jobs that have them
======================  =====================================================
"""

from .bulk import BATCH, Steering, Verb, release_jobs, retry_jobs
from .keys import (
    JobState,
    Key,
    jobs_of_keys,
    key_from,
    key_text,
    keys_from,
    keys_text,
    keys_without,
    states_of,
)

__all__ = [
    "BATCH",
    "JobState",
    "Key",
    "Steering",
    "Verb",
    "jobs_of_keys",
    "key_from",
    "key_text",
    "keys_from",
    "keys_text",
    "keys_without",
    "release_jobs",
    "retry_jobs",
    "states_of",
]
