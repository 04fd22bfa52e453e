"""The doctor: checks on the user's own table that an index serves the claim, and at what cost.

::

    report = doctor.examine(engine, Email)
    for finding in report.findings:
        print(finding.severity, finding.message, finding.fix)

It explains the statement of the claim, runs one claim that it rolls back, and looks at the
server. So it locks the rows of one batch for a moment, and changes nothing; with
``run=False`` it locks nothing. :func:`examine_locks` proves by two connections that locks
hold. On the command line: ``sa-jobqueue doctor``. ``docs/doctor.md`` lists the checks, and
"""

from __future__ import annotations

from ..dialects.examination import Severity
from .report import Cost, Finding, Report
from .run_checks import OLD_SNAPSHOT, examine, examine_index, examine_locks, examine_plan

__all__ = [
    "OLD_SNAPSHOT",
    "Cost",
    "Finding",
    "Report",
    "Severity",
    "examine",
    "examine_index",
    "examine_locks",
    "examine_plan",
]
