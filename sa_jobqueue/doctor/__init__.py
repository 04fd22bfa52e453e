"""The doctor: what slows or breaks the claims of a queue in the user's own database.

::

    report = doctor.examine(engine, Email)
    for finding in report.findings:
        print(finding.severity, finding.message, finding.fix)

It explains the statement of the claim, and looks at the table and the server. It locks nothing
and changes nothing, unless ``checks=["locks"]`` asks for a proof by two connections that locks
hold. On the command line: ``sa-jobqueue doctor``. ``docs/doctor.md`` lists the checks, and
"""

from __future__ import annotations

from .examination import Finding, Report, Severity
from .run_checks import OLD_SNAPSHOT, examine

__all__ = ["OLD_SNAPSHOT", "Finding", "Report", "Severity", "examine"]
