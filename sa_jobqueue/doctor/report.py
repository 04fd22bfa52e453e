"""What an examination found: facts, findings, and what one batch costs."""

from __future__ import annotations

from dataclasses import dataclass

from ..dialects.examination import Severity


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: what was looked at, in a word.
        severity: ``ok`` is a fact; ``warning`` and ``error`` want something done.
        message: what was found, in words.
        fix: what mends it; empty for a fact.
    """

    check: str
    severity: Severity
    message: str
    fix: str = ""

    def __str__(self) -> str:
        fix = f"\n  fix: {self.fix}" if self.fix else ""
        return f"{self.severity} [{self.check}] {self.message}{fix}"


@dataclass(frozen=True)
class Cost:
    """What one batch took, when the claim was run.

    Attributes:
        claimed: how many jobs it got.
        rows_read, rows_locked: None where the database does not tell.
    """

    claimed: int
    rows_read: int | None
    rows_locked: int | None


@dataclass(frozen=True)
class Report:
    """All that was found about one queue in one database.

    Attributes:
        findings: what wants something done, errors first.
        facts: what is as it should be.
        cost: what the claim cost; None where it was not run.
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
