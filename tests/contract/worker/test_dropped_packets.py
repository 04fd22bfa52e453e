"""A worker in a network of its own goes on when the packets of its connections are dropped.

No FIN passes and no RST, so neither side learns anything of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from sqlalchemy import make_url

from tests.chaos.link import Link, enter, ip, laid_link
from tests.contract.worker.driver import Workers
from tests.contract.worker.test_silent_network import DEADLINE, impatient
from tests.models import Task
from tests.processes import FORKSERVER
from tests.proxy import Proxy
from tests.servers import debian
from tests.servers.errors import NotHere
from tests.support import make_engine, until

#: Two deadlines of three seconds, that of the watcher and that of the claim, and some time more.
#: Without deadlines Linux sends for a quarter of an hour.
TWO_DEADLINES = 10

#: Linux gives higher ports to connections, until it is told to use these.
NEW_PORTS = "20000 29999"


@pytest.fixture
def link() -> Iterator[Link]:
    with ExitStack() as stack:
        try:
            debian.find("nft", "nftables")
            link = stack.enter_context(laid_link())
        except NotHere as missing:
            pytest.skip(f"no network of its own: {missing}")
        yield link


def drop_packets(link: Link) -> None:
    """Drop all packets of the connections that are there, by their local ports."""
    within = ("netns", "exec", link.namespace)
    ip(*within, "sh", "-c", f"echo {NEW_PORTS} > /proc/sys/net/ipv4/ip_local_port_range")
    for hook, port in (("output", "sport"), ("input", "dport")):
        chain = f"chain {hook} {{ type filter hook {hook} priority 0; tcp {port} > 29999 drop; }};"
        ip(*within, debian.find("nft", "nftables"), f"table ip drops {{ {chain} }}")


def work(namespace: str, kind: str, address: str) -> None:
    """Run a worker in a process of its own."""
    enter(namespace)
    url = make_url(address)
    workers = Workers(kind, make_engine(url))
    bind = impatient(workers, url)
    workers.run(workers.make(Task, bind=bind, deadline=DEADLINE, reap_every=None))


@contextmanager
def in_process(target: Callable[..., None], *arguments: str) -> Iterator[None]:
    """Call a function in a process, which is killed when the block ends."""
    process = FORKSERVER.Process(target=target, args=arguments, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


@pytest.mark.only_on("postgresql", "mariadb")
@pytest.mark.by_turns("postgresql", "mariadb")
@pytest.mark.process
def test_it_goes_on_within_two_deadlines(workers: Workers, link: Link) -> None:
    with Proxy(workers.plain.url, at=link.near) as proxy:
        address = proxy.url.render_as_string(hide_password=False)
        with in_process(work, link.namespace, workers.kind, address):
            workers.add("a")
            until(lambda: workers.statuses() == {"a": "done"})

            drop_packets(link)
            workers.add("b")
            until(lambda: workers.statuses() == {"a": "done", "b": "done"}, TWO_DEADLINES)
