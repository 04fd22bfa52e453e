"""Publish the outbox to NATS JetStream.

    pip install nats-py
    sa-jobqueue work outbox.to_nats --url postgresql+asyncpg://user@host/shop --concurrency 50

JetStream drops a message whose ``Nats-Msg-Id`` it has stored within the stream's
``duplicate_window``.
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

import nats
from nats.js import JetStreamContext
from nats.js.api import StreamConfig

from outbox.messages import Message, outbox

URL = os.environ.get("NATS_URL", "nats://localhost:4222")
STREAM = StreamConfig(name="OUTBOX", subjects=["outbox.>"], duplicate_window=24 * 3600)

messages = outbox()

_stream: JetStreamContext | None = None
_connecting = asyncio.Lock()


@messages.handler(timeout=timedelta(seconds=30))
async def publish(message: Message) -> None:
    """Publish a message, and wait until the broker has stored it."""
    stream = await jet_stream()
    await stream.publish(
        f"outbox.{message.key}",
        message.body.encode(),
        headers={"Nats-Msg-Id": str(message.id)},
    )


async def jet_stream() -> JetStreamContext:
    """Connect once, for all handlers; the client connects again by itself."""
    global _stream
    async with _connecting:
        if _stream is None:
            client = await nats.connect(URL, max_reconnect_attempts=-1)
            stream = client.jetstream(timeout=5)
            try:
                await stream.add_stream(STREAM)  # it may be there already
            except Exception:
                await client.close()
                raise
            _stream = stream
        return _stream
