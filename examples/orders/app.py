"""The web application takes orders, and a worker in the same process confirms them.

In production, run ``sa-jobqueue work`` as a process of its own, with the same handler.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import smtplib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from email.message import EmailMessage
from typing import Annotated, Any

from fastapi import Depends, FastAPI
from pydantic import BaseModel
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session, sessionmaker

from orders.models import Order, confirmations
from sa_jobqueue.worker import Worker

log = logging.getLogger("orders")

#: The mail server's host and port; set before the application starts.
MAIL_SERVER = ("localhost", 25)

sessions = sessionmaker[Session]()


@confirmations.handler(timeout=timedelta(seconds=30))
def confirm(order: Order) -> None:
    """Send the confirmation of an order; if the server refuses it, the worker tries again later."""
    message = EmailMessage()
    message["From"] = "shop@example.com"
    message["To"] = order.customer
    message["Subject"] = f"Order {order.id}"
    message.set_content(f"Thank you for ordering {order.item}.")
    with smtplib.SMTP(*MAIL_SERVER, timeout=10) as server:
        server.send_message(message)


def work(worker: Worker[Order]) -> None:
    """Run a worker; if an error ends it, end the application, whose supervisor starts another."""
    try:
        worker.run()
    except BaseException:
        log.critical("the worker has ended, and the application with it", exc_info=True)
        os.kill(os.getpid(), signal.SIGTERM)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Run a worker as long as the application; at the end the worker finishes its jobs."""
    worker = Worker(sessions, confirmations, concurrency=5)
    thread = threading.Thread(target=work, args=[worker])
    thread.start()
    yield
    worker.stop()
    await asyncio.to_thread(thread.join)


def session() -> Iterator[Session]:
    """Give a request its session."""
    with sessions() as opened:
        yield opened


RequestSession = Annotated[Session, Depends(session)]


class NewOrder(BaseModel):
    """The order that a customer sends."""

    customer: str
    item: str


shop = FastAPI(lifespan=lifespan)


@shop.post("/orders", status_code=201)
def place(new: NewOrder, session: RequestSession) -> int:
    """Place an order. The order is the job, so one commit saves it and queues its confirmation."""
    order = Order(customer=new.customer, item=new.item, max_attempts=3)
    session.add(order)
    session.commit()
    return order.id


@shop.get("/orders/failed")
def failed(session: RequestSession) -> list[dict[str, Any]]:
    """List the orders that could not be confirmed."""
    found = session.scalars(select(Order).where(Order.status == "failed").order_by(Order.id))
    return [
        {"order": order.id, "attempts": order.attempts, "error": order.last_error}
        for order in found
    ]


@shop.get("/orders/waiting")
def waiting(session: RequestSession) -> int:
    """Count the orders that are not confirmed yet."""
    counts = confirmations.count_by_status(session)
    return counts["unclaimed"] + counts["claimed"]


@shop.post("/orders/{order}/retry", status_code=204)
def retry(order: int, session: RequestSession) -> None:
    """Retry the confirmation of an order that has failed."""
    confirmations.retry(session, session.get_one(Order, order))
    session.commit()


def use(engine: Engine) -> None:
    """Let the application and its worker use a database."""
    sessions.configure(bind=engine)
