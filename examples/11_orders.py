"""A shop confirms its orders by e-mail, with FastAPI, Alembic and a mail server that often fails.

    pip install fastapi httpx2 aiosmtpd
    python examples/11_orders.py
    python examples/11_orders.py --url postgresql+psycopg2://user@host/database

The application is in examples/orders. This script migrates its database, starts a mail server and
the application, and places orders. The mail server refuses the first mail to each customer for a
while, and refuses one customer for ever. The comment at the end shows the output.
"""

# Run by the tests on sqlite, postgresql

from __future__ import annotations

import argparse
import email
import logging
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope
from aiosmtpd.smtp import Session as Connected
from alembic import command
from alembic.config import Config
from fastapi.testclient import TestClient
from orders import app
from orders.models import Base
from sqlalchemy import Engine, create_engine, inspect

CUSTOMERS = ["ann@example.com", "bo@example.com", "cy@example.com"]
GONE = "gone@example.com"
ITEMS = ["a lamp", "a chair", "a table", "a shelf"]


class Mailboxes:
    """The mailboxes of a mail server: the confirmed orders of each customer."""

    def __init__(self) -> None:
        self.confirmed: dict[str, list[str]] = {customer: [] for customer in CUSTOMERS}
        self.refused: set[str] = set()

    async def handle_RCPT(  # noqa: N802 - aiosmtpd calls it by this name
        self, server: SMTP, connected: Connected, envelope: Envelope, address: str, options: Any
    ) -> str:
        """Accept a recipient who has a mailbox."""
        if address not in self.confirmed:
            return "550 there is no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802
        self, server: SMTP, connected: Connected, envelope: Envelope
    ) -> str:
        """Accept a mail, except the first one to each recipient."""
        (recipient,) = envelope.rcpt_tos
        if recipient not in self.refused:
            self.refused.add(recipient)
            return "451 try again later"
        assert isinstance(envelope.content, bytes)
        self.confirmed[recipient].append(email.message_from_bytes(envelope.content)["Subject"])
        return "250 OK"


@contextmanager
def mail_server() -> Iterator[Mailboxes]:
    """Run a mail server on a free port, and tell the application the port."""
    mailboxes = Mailboxes()
    with socket.create_server(("127.0.0.1", 0)) as free:
        app.MAIL_SERVER = free.getsockname()
    controller = Controller(mailboxes, *app.MAIL_SERVER)
    controller.start()
    try:
        yield mailboxes
    finally:
        controller.stop()


def migrate(engine: Engine) -> None:
    """Run the application's migrations."""
    project = Config()
    project.set_main_option("script_location", str(Path(app.__file__).parent / "migrations"))
    project.attributes["engine"] = engine
    command.upgrade(project, "head")


def run(engine: Engine) -> None:
    """Place orders, wait until they are confirmed, and check the mailboxes."""
    app.use(engine)
    placed: dict[str, list[str]] = {customer: [] for customer in CUSTOMERS}
    with mail_server() as mailboxes, TestClient(app.shop) as client:
        for item in ITEMS:
            for customer in CUSTOMERS:
                order = client.post("/orders", json={"customer": customer, "item": item}).json()
                placed[customer].append(f"Order {order}")
        client.post("/orders", json={"customer": GONE, "item": "a bed"})
        while client.get("/orders/waiting").json():
            time.sleep(0.1)
        for customer, orders in placed.items():
            assert mailboxes.confirmed[customer] == orders, (customer, mailboxes.confirmed)
            print(f"{customer}: {len(orders)} orders, each confirmed once, in their order")
        for order in client.get("/orders/failed").json():
            print(f"order {order['order']} failed after {order['attempts']} attempts")
            print(order["error"])
    print("the application has stopped, and its worker with it")


def main() -> None:
    """Run the example on a database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="default: an SQLite file in a temporary folder")
    logging.getLogger("sa_jobqueue.worker").setLevel(logging.CRITICAL)  # failures are expected here
    with tempfile.TemporaryDirectory() as folder:
        url = parser.parse_args().url or f"sqlite:///{Path(folder) / 'shop.db'}"
        engine = create_engine(url)
        migrate(engine)
        try:
            run(engine)
        finally:
            clean_up(engine)


def clean_up(engine: Engine) -> None:
    """Drop all tables of the example."""
    Base.metadata.drop_all(engine)
    with engine.begin() as connection:
        if inspect(connection).has_table("alembic_version"):
            connection.exec_driver_sql("DROP TABLE alembic_version")
    engine.dispose()


if __name__ == "__main__":
    main()

# Output:
#
# ann@example.com: 4 orders, each confirmed once, in their order
# bo@example.com: 4 orders, each confirmed once, in their order
# cy@example.com: 4 orders, each confirmed once, in their order
# order 13 failed after 3 attempts
# SMTPRecipientsRefused: {'gone@example.com': (550, b'there is no such mailbox')}
# the application has stopped, and its worker with it
