"""SQLite: how a list of integer keys is written, by the version.

A rule by versions that no test has: the inner module is imported to make up a version.
"""

from __future__ import annotations

import pytest
from sqlalchemy import BigInteger, column
from sqlalchemy.dialects import sqlite

from sa_jobqueue.dialects.sqlite.database import SQLite


@pytest.mark.parametrize(("version", "as_json"), [((3, 37, 2), False), ((3, 38, 0), True)])
def test_integer_keys_are_one_parameter_where_every_build_has_json(
    version: tuple[int, ...], as_json: bool
) -> None:
    criterion = SQLite(version).key_is_in(column("id", BigInteger), "keys")

    text = str(criterion.compile(dialect=sqlite.dialect()))

    assert ("json_each" in text) is as_json
