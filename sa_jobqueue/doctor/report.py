"""The report of an examination: facts, findings, and what a batch costs."""

from __future__ import annotations

from dataclasses import dataclass

from ..dialects.examination import Severity


@dataclass(frozen=True)
class Finding:
    """What a check has found.

    Attributes:
        check: the name of the check.
        severity: ``ok`` for a fact; ``warning`` and ``error`` need a fix.
        message: what was found.
        fix: how to mend it; empty for a fact.
        is_unchecked: the check could not be made, and `message` says why.
    """

    check: str
    severity: Severity
    message: str
    fix: str = ""
    is_unchecked: bool = False

    def __str__(self) -> str:
        fix = f"\n  fix: {self.fix}" if self.fix else ""
        return f"{self.severity} [{self.check}] {self.message}{fix}"


@dataclass(frozen=True)
class Cost:
    """What it cost to claim a batch.

    Attributes:
        claimed: how many jobs the claim got.
        rows_read: how many rows the claim read; None: the database does not show it.
        rows_locked: how many rows the claim locked; None: the database does not show it.
    """

    claimed: int
    rows_read: int | None
    rows_locked: int | None


@dataclass(frozen=True)
class Report:
    """All that was found about a queue in its database.

    Attributes:
        findings: what needs a fix, errors first.
        facts: what is as it should be.
        cost: what the claim cost; None where no claim was run.
    """

    queue: str
    database: str
    findings: tuple[Finding, ...]
    facts: tuple[Finding, ...]
    cost: Cost | None = None

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that make claims slow, wrong or impossible."""
        return self._of(Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that ask for attention, and what could not be checked."""
        return self._of(Severity.WARNING)

    def _of(self, severity: Severity) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is severity)

    def __str__(self) -> str:
        head = f"{self.queue} on {self.database}"
        return "\n".join([head, *map(str, self.findings), *map(str, self.facts)])
