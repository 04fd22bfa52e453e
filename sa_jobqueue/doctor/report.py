"""The report of an examination: what needs a fix, and what is as it should be."""

from __future__ import annotations

from dataclasses import dataclass

from ..dialects.examination import Finding, Severity


@dataclass(frozen=True)
class Report:
    """All that was found about a queue in its database.

    Attributes:
        findings: what needs a fix, errors first.
        facts: what is as it should be.
    """

    queue: str
    database: str
    findings: tuple[Finding, ...]
    facts: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that make claims slow, wrong or impossible."""
        return tuple(found for found in self.findings if found.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that ask for attention, and what could not be checked."""
        return tuple(found for found in self.findings if found.severity is Severity.WARNING)

    def __str__(self) -> str:
        head = f"{self.queue} on {self.database}"
        return "\n".join([head, *map(str, self.findings), *map(str, self.facts)])
