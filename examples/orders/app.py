"""The web application: it takes orders, and a worker beside it confirms them.

In production run the worker as a process of its own, ``sa-jobqueue work``; the handler is the same.
"""

from __future__ import annotations

import asyncio
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

#: The mail server's host and port; set before the application starts.
MAIL_SERVER = ("localhost", 25)

sessions = sessionmaker[Session]()


@confirmations.handler(timeout=timedelta(seconds=30))
def confirm(order: Order) -> None:
    """Send the confirmation of an order; what the server refuses is tried again later."""
    message = EmailMessage()
    message["From"] = "shop@example.com"
    message["To"] = order.customer
    message["Subject"] = f"Order {order.id}"
    message.set_content(f"Thank you for ordering {order.item}.")
    with smtplib.SMTP(*MAIL_SERVER, timeout=10) as server:
        server.send_message(message)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Let a worker run as long as the application; at the end it finishes what it has begun."""
    worker = Worker(sessions, confirmations, concurrency=5)
    thread = threading.Thread(target=worker.run)
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
    """What a customer sends."""

    customer: str
    item: str


shop = FastAPI(lifespan=lifespan)


@shop.post("/orders", status_code=201)
def place(new: NewOrder, session: RequestSession) -> int:
    """Place an order. Its confirmation is queued by the same commit, since the order is the job."""
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
    """Count the orders that are still to be confirmed."""
    counts = confirmations.count_by_status(session)
    return counts["unclaimed"] + counts["claimed"]


@shop.post("/orders/{order}/retry", status_code=204)
def retry(order: int, session: RequestSession) -> None:
    """Confirm an order once more, which has failed."""
    confirmations.retry(session, session.get_one(Order, order))
    session.commit()


def use(engine: Engine) -> None:
    """Have the application, and its worker, use a database."""
    sessions.configure(bind=engine)
