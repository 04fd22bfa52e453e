"""The doctor finds nothing wrong with a queue whose names need quotes."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import URL, Column, Integer, NullPool, String
from sqlalchemy.orm import declarative_base

from sa_jobqueue import JobMixin, JobQueue
from sa_jobqueue.doctor import examine
from tests.support import make_engine

OF_INDEXES = ("index", "plan", "reap", "updates")


@pytest.mark.parametrize("name", ["100%", "it's", 'say "so"', "$sa$", "a:b"])
def test_the_indexes_of_a_queue_of_any_name_are_known(fresh_database: URL, name: str) -> None:
    engine = make_engine(fresh_database, poolclass=NullPool)
    base = declarative_base()
    body = {
        "__tablename__": f"mails {name}",
        "__queue_args__": {"per_key": "account"},
        "id": Column(Integer, primary_key=True),
        "account": Column(name, String(20)),
    }
    mail: Any = type("Mail", (JobMixin.named(status=f"{name} status"), base), body)
    base.metadata.create_all(engine)

    findings = examine(engine, JobQueue(mail, serial_by=mail.account)).findings

    assert [finding for finding in findings if finding.check in OF_INDEXES] == []
    engine.dispose()
