"""Autogenerate sees the control tables, and finds nothing to change once they are there."""

from __future__ import annotations

import pytest
from sqlalchemy import URL, MetaData

from sa_jobqueue.control import control_tables
from tests.migration.support import differences
from tests.support import make_engine


def test_autogenerate_adds_the_control_tables_once(fresh_database: URL) -> None:
    engine, metadata = make_engine(fresh_database), MetaData()
    control_tables(metadata)

    missing = {change[1].name for change in differences(engine, metadata)}
    metadata.create_all(engine)

    assert {"job_workers", "job_pauses", "job_stops"} <= missing
    assert differences(engine, metadata) == []
    engine.dispose()


@pytest.mark.only_on("postgresql")
def test_the_control_tables_may_have_a_schema_of_their_own() -> None:
    tables = control_tables(MetaData(schema="app"), schema="control")

    assert tables.pauses.fullname == "control.job_pauses"
    assert control_tables(MetaData(schema="app")).pauses.fullname == "app.job_pauses"
