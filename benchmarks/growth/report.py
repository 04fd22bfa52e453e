"""What is written of growth: JSON for programs and plots, tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.growth.courses import PARTS, Course
from benchmarks.growth.crowd import Crowd
from benchmarks.growth.sizes import Latency, Timed
from benchmarks.harness.written import table


@dataclass
class Growth:
    """Everything that was measured on one engine.

    Attributes:
        done: by rows already done.
        backlog: by rows that wait.
        courses: whole drains, with and without an old snapshot.
        crowds: producers and consumers at once.
    """

    done: list[Timed] = field(default_factory=list)
    backlog: list[Timed] = field(default_factory=list)
    courses: list[Course] = field(default_factory=list)
    crowds: list[Crowd] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return it in plain values, with the ratios."""
        return {
            "done": [_timed(timed) for timed in self.done],
            "backlog": [_timed(timed) for timed in self.backlog],
            "courses": [
                {**asdict(course), "kept": round(course.kept, 3)} for course in self.courses
            ],
            "crowds": [
                {**asdict(crowd), "surfaced_per_10_000": crowd.surfaced_per_10_000}
                for crowd in self.crowds
            ],
        }

    def as_markdown(self) -> str:
        """Return tables, each under what it shows; those that are empty are left out."""
        tables = [
            (f"By rows done. {RATIOS}", _of_sizes(self.done), self.done),
            (f"By backlog. {RATIOS}", _of_sizes(self.backlog), self.backlog),
            ("Jobs per second in each tenth of a drain", _of_courses(self.courses), self.courses),
            ("Producers and consumers at once", _of_crowds(self.crowds), self.crowds),
        ]
        return "\n\n".join(f"{title}\n\n{text}" for title, text, found in tables if found)


def _timed(timed: Timed) -> dict[str, Any]:
    plain = asdict(timed)
    return {
        **plain.pop("size"),
        **plain,
        "claim_ratio": round(timed.claim_ratio, 3),
        "statement_ratio": round(timed.statement_ratio, 3),
        "finish_ratio": round(timed.finish_ratio, 3),
    }


RATIOS = (
    "Each ratio is to the median of a small table, which stays at the first size and is measured "
    "in turn with the large one."
)
SIZES = (
    "done",
    "backlog",
    "old snapshot",
    "",
    "claim p50 ms",
    "p99",
    "ratio",
    "before COMMIT p50",
    "ratio",
    "finish p50 ms",
    "p99",
    "ratio",
)


def _of_sizes(found: Sequence[Timed]) -> str:
    return table(
        SIZES,
        [
            (
                f"{timed.size.done:,}",
                f"{timed.size.backlog:,}",
                "open" if timed.snapshot else "none",
                timed.kind,
                *_both(timed.claim),
                f"{timed.claim_ratio:.2f}",
                f"{timed.statement.p50:.2f}",
                f"{timed.statement_ratio:.2f}",
                *_both(timed.finish),
                f"{timed.finish_ratio:.2f}",
            )
            for timed in found
        ],
    )


def _both(latency: Latency | None) -> tuple[str, str]:
    return ("-", "-") if latency is None else (f"{latency.p50:.2f}", f"{latency.p99:.2f}")


def _of_courses(found: Sequence[Course]) -> str:
    return table(
        ("old snapshot", *map(str, range(1, PARTS + 1)), "kept"),
        [
            (
                "open" if course.snapshot else "none",
                *(f"{rate:,.0f}" for rate in course.rates),
                f"{course.kept:.2f}",
            )
            for course in found
        ],
    )


CROWDS = (
    "consumers by",
    "batch",
    "jobs",
    "jobs/s",
    "claim p50 ms",
    "p99",
    "finish p50 ms",
    "p99",
    "errors inside",
    "surfaced",
    "per 10,000 jobs",
    "in producers",
)


def _of_crowds(found: Sequence[Crowd]) -> str:
    return table(
        CROWDS,
        [
            (
                crowd.way,
                crowd.batch,
                f"{crowd.jobs:,}",
                f"{crowd.jobs / crowd.seconds:,.0f}",
                *_both(crowd.claim),
                *_both(crowd.finish),
                _errors(crowd.inside),
                _errors(crowd.surfaced),
                f"{crowd.surfaced_per_10_000:.2f}",
                _errors(crowd.producing),
            )
            for crowd in found
        ],
    )


def _errors(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of {number}" for number, count in sorted(counted.items())) or "0"
