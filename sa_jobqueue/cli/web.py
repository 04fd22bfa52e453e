"""``web``: the web page of queues, for the user of this machine."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any
from urllib.parse import urlencode

import click
from sqlalchemy import Engine

from ..queue import JobQueue
from .command import Place, command, flag, host_option, text
from .logs import log_options, set_up_logging

MISSING = "the web page needs more packages: pip install 'sa_jobqueue[web]'"

#: Where everybody listens who has no name for it.
EVERYWHERE = ("0.0.0.0", "::")


@command(
    host_option,
    text(
        "--port", "The port; 0: any that is free.", "N", type=click.IntRange(0, 65535), default=8000
    ),
    flag("--read-only", "Show the queues, but allow no changes."),
    log_options,
    tables=False,
    threads=True,
)
def web(
    at: Place, host: str, port: int, read_only: bool, log_level: str | None, log_json: bool
) -> None:
    """Serve a web page with queues until Ctrl-C.

    Open the address that the command prints. Everybody who has this address can see and change the
    queues. The log has each change.
    """
    set_up_logging(log_level, as_json=log_json)
    serve(at.engine, at.queues, host, port, read_only=read_only)


def serve(
    engine: Engine, queues: dict[str, JobQueue[Any]], host: str, port: int, *, read_only: bool
) -> None:
    """Serve the page until a signal comes."""
    try:
        import uvicorn

        from ..web import Access
        from ..web.application import TOKEN, local_app, new_token
    except ImportError as error:
        raise click.ClickException(MISSING) from error
    token, access = new_token(), Access.READ if read_only else Access.ADMIN
    site = local_app(engine, queues, token=token, access=access, host=host)
    config = uvicorn.Config(
        site, host, port, log_level="warning", access_log=False, proxy_headers=False
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:  # whoever reads the address may come at once
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host}:{port}: {error}") from error
    if not is_this_machine(host):
        click.echo(
            f"Listening on {host}: everybody who gets the address below can come in.", err=True
        )
    found = listening.getsockname()[1]
    click.echo(f"http://{in_address(host)}:{found}/?{urlencode({TOKEN: token})}")
    try:
        uvicorn.Server(config).run([listening])
    except KeyboardInterrupt:
        pass  # uvicorn has stopped, and raises the signal again
    finally:
        site.state.site.samples.stop()


def is_this_machine(host: str) -> bool:
    """Tell whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def in_address(host: str) -> str:
    """Write a host as an address has it."""
    if host in EVERYWHERE:
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
