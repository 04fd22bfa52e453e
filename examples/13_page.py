"""See and steer a shop's orders on a web page, beside the shop itself.

    pip install 'sa_jobqueue[web]' fastapi httpx2
    python examples/13_page.py --serve 8000
    python examples/13_page.py --url postgresql+psycopg2://user@host/database

The orders are those of example 11. Two of them could not be confirmed. With --serve 8000, open
http://127.0.0.1:8000/jobs/ as ada (password: lovelace), who may change everything, or as bo
(password: peep), who may only read. Without --serve the script visits the page itself. The comment
at the end shows what the script saw.
"""

# Run by the tests on sqlite, postgresql

from __future__ import annotations

import argparse
import logging
import re
import secrets
import tempfile
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from fastapi.security import HTTPBasic
from fastapi.testclient import TestClient
from orders.models import Base, Order, confirmations
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session
from starlette.requests import Request

from sa_jobqueue.control import control_tables
from sa_jobqueue.web import Access, Visitor, app

#: The shop's own users: their passwords, and what they may do on the page.
USERS = {"ada": ("lovelace", Access.ADMIN), "bo": ("peep", Access.READ)}

login = HTTPBasic(realm="shop")

control_tables(Base.metadata)  # so that a queue can be paused


async def authorize(request: Request) -> Visitor | None:
    """Return who asks, here by HTTP's login; an application would look at its own session."""
    given = await login(request)  # asks the browser for a name if it sent none
    password, access = USERS.get(given.username if given else "", ("", Access.READ))
    if given is None or not password or not secrets.compare_digest(given.password, password):
        return None
    return Visitor(given.username, access)


def shop_with_page(engine: Engine) -> FastAPI:
    """Return the shop with the page under /jobs."""
    shop = FastAPI()
    shop.mount("/jobs", app(engine, {"confirmations": confirmations}, authorize=authorize))
    return shop


def place_orders(engine: Engine) -> None:
    """Place four orders; the mail server refuses two of the confirmations for good."""
    with Session(engine, expire_on_commit=False) as session:
        for customer in ("ann", "bo", "cy", "di"):
            session.add(Order(customer=f"{customer}@example.com", item="a lamp", max_attempts=1))
        session.commit()
        for order in confirmations.claim(session, owner="mailer", limit=2):
            confirmations.fail(session, order, error=f"no mailbox for {order.customer}")
        session.commit()


def visit(client: TestClient) -> None:
    """Look at the page and retry the failed jobs: first a preview, then the change."""
    print("a stranger:", client.get("/jobs/").status_code)
    client.auth = ("bo", "peep")
    page = client.get("/jobs/queues/confirmations").text
    print("bo sees:", ", ".join(sorted({*re.findall(r"no mailbox for [\w@.]+", page)})))
    form = {"all": "retry", "show": "failed"}
    print("bo retries:", title(send(client, form)))
    client.auth = ("ada", "lovelace")
    preview = send(client, form)
    print("ada retries:", title(preview))
    named = dict(re.findall(r'type="hidden" name="(.+?)" value="(.+?)"', preview))
    print("ada confirms:", title(send(client, {**named, "confirm": "yes"})))
    print("from another site:", title(send(client, form, site="cross-site")))


def send(client: TestClient, form: dict[str, str], site: str = "same-origin") -> str:
    """Send a form, as a browser does; return the page that it leads to."""
    headers = {"Sec-Fetch-Site": site}
    return client.post("/jobs/queues/confirmations", data=form, headers=headers).text


def title(page: str) -> str:
    """Return the title of a page."""
    found = re.search(r"<h1.*?>(.*?)</h1>", page)
    return found[1] if found else page


def run(engine: Engine, port: int | None) -> None:
    """Place orders; then serve the page, or visit it."""
    Base.metadata.create_all(engine)
    try:
        place_orders(engine)
        shop = shop_with_page(engine)
        if port is not None:
            uvicorn.run(shop, port=port)
        else:
            with TestClient(shop) as client:
                visit(client)
    finally:
        Base.metadata.drop_all(engine)
        engine.dispose()


def main() -> None:
    """Run the example on a database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="default: an SQLite file in a temporary folder")
    parser.add_argument("--serve", type=int, metavar="PORT", help="serve the page until Ctrl-C")
    given = parser.parse_args()
    logging.getLogger("sa_jobqueue.web").setLevel(logging.ERROR)  # refusals are expected here
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or f"sqlite:///{Path(folder) / 'shop.db'}"
        run(create_engine(url), given.serve)


if __name__ == "__main__":
    main()

# Output:
#
# a stranger: 401
# bo sees: no mailbox for ann@example.com, no mailbox for bo@example.com
# bo retries: You may read only
# ada retries: Retry all 2 jobs?
# ada confirms: 2 jobs retried
# from another site: Refused
