"""The URLs that a person gave: on the command line, in the environment, in setup.cfg."""

from __future__ import annotations

import os
from collections.abc import Mapping
from configparser import ConfigParser
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

REPOSITORY = Path(__file__).resolve().parents[2]
SETUP_CFG = REPOSITORY / "setup.cfg"

# In the order in which tests run: the fastest database shows mistakes first.
DRIVERS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg2",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
DATABASES = tuple(DRIVERS)


def find_given(
    database: str, *, environ: Mapping[str, str] | None = None, setup_cfg: Path = SETUP_CFG
) -> str | None:
    """Return the URL that the environment or else setup.cfg names for this database."""
    variables = os.environ if environ is None else environ
    return variables.get(variable_of(database)) or read_setup_cfg(setup_cfg).get(database)


def variable_of(database: str) -> str:
    """Name the environment variable that gives this database's URL."""
    return f"SA_JOBQUEUE_{database.upper()}_URL"


def read_setup_cfg(path: Path) -> dict[str, str]:
    """Read the section [db]: alias = url, without the aliases left empty."""
    # Without interpolation: a password in a URL is full of percent signs.
    parser = ConfigParser(interpolation=None)
    parser.read(path, encoding="utf-8")
    if not parser.has_section("db"):
        return {}
    return {alias: url.strip() for alias, url in parser.items("db") if url.strip()}


def alias_of(url: str) -> str:
    """Tell which database a URL is for, by its scheme."""
    try:
        alias = make_url(url).get_backend_name()
    except ArgumentError as error:
        raise ValueError(
            f"not a database URL: {url!r}; write database+driver://host/database"
        ) from error
    if alias not in DRIVERS:
        raise ValueError(f"unknown database {alias!r} in a URL; known: {', '.join(DATABASES)}")
    return alias


def with_driver(url: str) -> URL:
    """Name our driver in a URL that names none: SQLAlchemy's own choice differs by version."""
    parsed = make_url(url)
    return parsed if "+" in parsed.drivername else parsed.set(drivername=DRIVERS[alias_of(url)])
