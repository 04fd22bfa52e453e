"""Publish the outbox to RabbitMQ, with publisher confirms.

    pip install pika
    sa-jobqueue work outbox.to_rabbitmq --url postgresql+psycopg2://user@host/shop --concurrency 10

RabbitMQ drops no repeat. A consumer notes the ``message_id`` of each message in the transaction of
its own changes, and skips a message whose id it has noted.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from outbox.messages import Message, outbox

URL = os.environ.get("RABBITMQ_URL", "amqp://guest:guest@localhost:5672/")
QUEUE = "outbox"

messages = outbox()

#: The channel of each thread: pika's connections may not be shared.
own = threading.local()


@messages.handler
def publish(message: Message) -> None:
    """Publish a message, and wait until the broker has confirmed it."""
    channel().basic_publish(
        exchange="",
        routing_key=QUEUE,
        body=message.body.encode(),
        properties=pika.BasicProperties(
            message_id=str(message.id),
            headers={"key": message.key},
            delivery_mode=pika.DeliveryMode.Persistent,
        ),
        mandatory=True,  # a message that reaches no queue is an error
    )


def channel() -> BlockingChannel:
    """Return the channel of this thread; connect again if it was closed."""
    opened: BlockingChannel | None = getattr(own, "channel", None)
    if opened is not None:
        with suppress(AMQPError):
            opened.connection.process_data_events()  # the broker closes idle connections
    if opened is None or opened.is_closed:
        opened = pika.BlockingConnection(pika.URLParameters(URL)).channel()
        opened.queue_declare(QUEUE, durable=True)
        opened.confirm_delivery()
        own.channel = opened
    return opened
