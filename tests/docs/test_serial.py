"""The code of docs/serial.md, run in its order."""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, String, inspect
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, RetryMixin, ScheduleMixin
from tests.support import make_engine

from .markdown import code_blocks, page


def test_the_code_of_the_page_does_what_it_says(fresh_database: URL) -> None:
    class Base(DeclarativeBase):
        pass

    engine = make_engine(fresh_database)
    names: dict[str, Any] = {
        "Base": Base,
        "JobMixin": JobMixin,
        "JobQueue": JobQueue,
        "Mapped": Mapped,
        "RetryMixin": RetryMixin,
        "ScheduleMixin": ScheduleMixin,
        "String": String,
        "mapped_column": mapped_column,
        "__name__": "serial",
    }
    model, claims = code_blocks(page("docs/serial.md"), "python")

    # Without the annotations of this module's future: they would be looked up in a module.
    exec(compile(model, "serial.md", "exec", dont_inherit=True), names)
    Base.metadata.create_all(engine)
    with Session(engine, expire_on_commit=False) as session:
        exec(claims, {**names, "session": session})

    found = inspect(engine).get_indexes("email")
    indexes = {index["name"]: index["column_names"] for index in found}
    expected = ["status", "account_id", "attempts", "run_at", "id"]
    assert indexes["ix_email_key_account_id"] == expected
    engine.dispose()
