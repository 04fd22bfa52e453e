"""Publish the outbox to a stream of Redis, by asyncio.

    pip install redis
    sa-jobqueue work outbox.to_redis_async --url postgresql+asyncpg://user@host/shop \
        --concurrency 50
"""

from __future__ import annotations

from datetime import timedelta

from redis.asyncio import Redis

from outbox.messages import Message, outbox
from outbox.to_redis import APPEND, URL, arguments

messages = outbox()

append = Redis.from_url(URL, socket_timeout=5).register_script(APPEND)


@messages.handler(timeout=timedelta(seconds=30))
async def publish(message: Message) -> None:
    """Publish a message, and wait until Redis has appended it."""
    await append(**arguments(message))
