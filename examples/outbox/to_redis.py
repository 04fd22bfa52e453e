"""Publish the outbox to a stream of Redis.

    pip install redis
    sa-jobqueue work outbox.to_redis --url postgresql+psycopg2://user@host/shop --concurrency 10

Redis keeps what it has answered if it runs with ``appendonly yes`` and ``appendfsync always``.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from redis import Redis

from outbox.messages import Message, outbox

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
STREAM = "{outbox}"  # the braces keep all keys of the script on one node of a cluster

#: How long Redis remembers the id of a message, and drops its repeats.
REMEMBERED = timedelta(days=1)

#: Append a message to the stream, unless its id is remembered.
APPEND = """
if redis.call('SET', KEYS[2], '', 'NX', 'EX', ARGV[1]) then
    redis.call('XADD', KEYS[1], '*', 'id', ARGV[2], 'key', ARGV[3], 'body', ARGV[4])
end
"""

messages = outbox()

append = Redis.from_url(URL, socket_timeout=5).register_script(APPEND)


@messages.handler
def publish(message: Message) -> None:
    """Publish a message, and wait until Redis has appended it."""
    append(**arguments(message))


def arguments(message: Message) -> dict[str, Any]:
    """Return the arguments of the script."""
    seconds = REMEMBERED // timedelta(seconds=1)
    return {
        "keys": [STREAM, f"{STREAM}:{message.id}"],
        "args": [seconds, message.id, message.key, message.body],
    }
