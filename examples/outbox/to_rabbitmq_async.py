"""Publish the outbox to RabbitMQ, with publisher confirms, by asyncio.

    pip install aio-pika
    sa-jobqueue work outbox.to_rabbitmq_async --url postgresql+asyncpg://user@host/shop \
        --concurrency 50

All handlers share a channel. The consumer drops repeats, as it does for ``to_rabbitmq``.
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

import aio_pika
from aio_pika.abc import AbstractChannel

from outbox.messages import Message, outbox

URL = os.environ.get("RABBITMQ_URL", "amqp://guest:guest@localhost:5672/")
QUEUE = "outbox"

messages = outbox()

_channel: AbstractChannel | None = None
_connecting = asyncio.Lock()


@messages.handler(timeout=timedelta(seconds=30))
async def publish(message: Message) -> None:
    """Publish a message, and wait until the broker has confirmed it."""
    exchange = (await channel()).default_exchange
    published = aio_pika.Message(
        message.body.encode(),
        message_id=str(message.id),
        headers={"key": message.key},
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
    )
    await exchange.publish(published, QUEUE, mandatory=True)


async def channel() -> AbstractChannel:
    """Return the channel of all handlers; connect again if it was closed."""
    global _channel
    async with _connecting:
        if _channel is None or _channel.is_closed:
            connection = await aio_pika.connect(URL)
            opened = await connection.channel(publisher_confirms=True, on_return_raises=True)
            await opened.declare_queue(QUEUE, durable=True)
            _channel = opened
        return _channel
