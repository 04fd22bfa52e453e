"""The table of checks in docs/doctor.md, compared with the doctor's list of checks."""

from __future__ import annotations

from sa_jobqueue.doctor.run_checks import CHECKS

from .markdown import page, table


def test_the_page_of_the_doctor_explains_each_check() -> None:
    explained = [line["check"] for line in table(page("docs/doctor.md"), "check")]

    assert sorted(explained) == sorted(CHECKS)
