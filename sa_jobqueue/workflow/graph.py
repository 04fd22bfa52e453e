"""The graph of a workflow: which statuses there are, and where a job may go from each.

It grows while the user's module is imported, and is checked when it is first used: a step is
often declared before the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ..errors import ArgumentError, InvalidTransition
from ..model.mapping import QueueMapping, word_of
from ..model.status import CANCELLED, DONE, FAILED, UNCLAIMED, JobStatus
from ..model.transitions import FINISHED


class Arrow(NamedTuple):
    """A change of status that a workflow knows, and the verb that makes it."""

    before: str
    after: str
    verb: str


@dataclass(frozen=True)
class Node:
    """A step in the graph: its statuses, in the table's own words.

    Attributes:
        ready: the status of its unclaimed jobs.
        during: the status of its claimed jobs.
        targets: the statuses that its handler may send jobs to: `then`, then the branches.
    """

    name: str
    ready: str
    during: str
    targets: tuple[str, ...]


@dataclass
class Graph:
    """The statuses of a workflow.

    Attributes:
        statuses: the user's enum, if one was given.
        further_final: the statuses that jobs end in, besides done, failed and cancelled.
        waiting: for each status in which jobs wait for a signal, the statuses that signals
            may move them to.
    """

    mapping: QueueMapping
    statuses: type[Enum] | None
    further_final: tuple[str, ...]
    nodes: list[Node] = field(default_factory=list)
    waiting: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _checked: bool = False

    def __post_init__(self) -> None:
        given = self.statuses
        if given is not None and not (isinstance(given, type) and issubclass(given, str)):
            raise ArgumentError(f"statuses= takes a str enum, as in class S(StrEnum): {given!r}")

    def word(self, status: str) -> str:
        """Return the table's word for a status.

        Raises:
            ArgumentError: it cannot be a status, or is no member of the workflow's enum.
        """
        word = word_of(self.mapping, status)
        known = [*(self.statuses or ()), *map(self.mapping.word, JobStatus)]
        if self.statuses is not None and word not in known:
            raise ArgumentError(f"{word!r} is no member of {self.statuses.__name__}")
        return word

    def plain(self, status: str) -> str:
        """Return the word of a status, whether it is of this workflow or not."""
        if isinstance(status, JobStatus):
            return self.mapping.word(status)
        return str(status.value) if isinstance(status, Enum) else status

    def words(self, statuses: Iterable[str]) -> tuple[str, ...]:
        """Return the words of several statuses, or of one status, without repetition."""
        several = (statuses,) if isinstance(statuses, str) else statuses
        return tuple(dict.fromkeys(map(self.word, several)))

    def add(self, node: Node) -> None:
        """Add a step."""
        self.nodes.append(node)
        self._checked = False

    def add_waiting(self, status: str, signals: tuple[str, ...]) -> None:
        """Add a status in which jobs wait for a signal.

        Raises:
            ArgumentError: it was added before.
        """
        if status in self.waiting:
            raise ArgumentError(
                f"waiting({status!r}) was declared before, with signals={self.waiting[status]!r}: "
                "name all signals of a status in one declaration"
            )
        self.waiting[status] = signals
        self._checked = False

    # -- its statuses and arrows ----------------------------------------

    @property
    def initial(self) -> str:
        """The status of a new row."""
        return self.mapping.word(UNCLAIMED)

    @property
    def ready(self) -> tuple[str, ...]:
        """The statuses that steps claim from."""
        return tuple(node.ready for node in self.nodes)

    @property
    def final(self) -> tuple[str, ...]:
        """The statuses that jobs end in."""
        finished = map(self.mapping.word, FINISHED)
        return tuple(dict.fromkeys((*finished, *self.further_final)))

    @property
    def done(self) -> str:
        """The status of a done job."""
        return self.mapping.word(DONE)

    def is_final(self, word: str) -> bool:
        """Tell whether jobs end in this status."""
        return word in self.final

    def waits(self, word: str) -> bool:
        """Tell whether jobs of this status wait for a claim or for a signal."""
        return word in self.ready or word in self.waiting

    @property
    def arrows(self) -> Iterator[Arrow]:
        """Every change of status that the workflow's verbs make."""
        failed, cancelled = self.mapping.word(FAILED), self.mapping.word(CANCELLED)
        for node in self.nodes:
            yield Arrow(node.ready, node.during, "claim")
            for target in node.targets:
                yield Arrow(node.during, target, "complete")
            yield Arrow(node.during, node.ready, "release")
            yield Arrow(node.during, node.ready, "reap")
            yield Arrow(node.during, cancelled, "cancel_claimed")
            yield Arrow(node.during, failed, "fail")
            if self.mapping.has("attempts"):
                yield Arrow(node.during, node.ready, "fail")
                yield Arrow(node.during, failed, "reap")
        for waiting, signals in self.waiting.items():
            for target in signals:
                yield Arrow(waiting, target, "signal")
        for word in (*self.ready, *self.waiting):
            yield Arrow(word, cancelled, "cancel")
        for final in self.final:
            for ready in self.ready:
                yield Arrow(final, ready, "retry")

    # -- which change is allowed ----------------------------------------

    def check_target(self, node: Node, word: str) -> None:
        """Refuse a status that a step does not lead to.

        Raises:
            InvalidTransition: it names the statuses that the step leads to.
        """
        if word not in node.targets:
            raise InvalidTransition(node.during, word, node.targets)

    def sources_of(self, signal: str) -> tuple[str, ...]:
        """Return the statuses from which a signal moves jobs to `signal`.

        Raises:
            InvalidTransition: there is none; the error names the signals that there are.
        """
        sources = tuple(word for word, signals in self.waiting.items() if signal in signals)
        if not sources:
            known = dict.fromkeys(word for signals in self.waiting.values() for word in signals)
            waiting = " or ".join(self.waiting) or "waiting for a signal"
            raise InvalidTransition(waiting, signal, tuple(known))
        return sources

    # -- whether it can work --------------------------------------------

    def check(self) -> None:
        """Refuse a graph in which jobs would get stuck.

        Raises:
            ArgumentError: it tells what is wrong, and what to write instead.
        """
        if self._checked:
            return
        if not self.nodes:
            raise ArgumentError(
                f"the workflow over {self.mapping} has no step: declare one with @workflow.step()"
            )
        self._check_each_once()
        self._check_targets()
        self._check_beginning()
        self._check_indexes()
        self._checked = True

    def _check_each_once(self) -> None:
        roles = [(node.ready, f"ready for {node.name}") for node in self.nodes]
        roles += [(node.during, f"claimed by {node.name}") for node in self.nodes]
        roles += [(word, "waiting for a signal") for word in self.waiting]
        roles += [(word, "that have ended") for word in self.final]
        seen: dict[str, str] = {}
        for word, role in roles:
            if word in seen:
                raise ArgumentError(
                    f"{word!r} cannot be the status both of jobs {seen[word]} and of jobs {role}: "
                    "give each a status of its own"
                )
            seen[word] = role

    def _check_targets(self) -> None:
        ways = [(node.name, node.targets) for node in self.nodes]
        ways += [(f"a signal in {word!r}", signals) for word, signals in self.waiting.items()]
        for way, targets in ways:
            for target in targets:
                if not (self.waits(target) or self.is_final(target)):
                    raise ArgumentError(
                        f"{way} leads to {target!r}, where a job would stay for ever: no step "
                        f"claims it. Declare a step, or workflow.waiting({target!r}, signals=..), "
                        f"or, if jobs end there, Workflow(.., final=[{target!r}])"
                    )

    def _check_beginning(self) -> None:
        if not self.waits(self.initial):
            raise ArgumentError(
                f"new rows of {self.mapping} are {self.initial!r}, and no step claims them. Name "
                f"their status: __queue_args__ = {{'names': {{'unclaimed': {self.ready[0]!r}}}}}"
            )

    def _check_indexes(self) -> None:
        mapping = self.mapping
        served = {"ready": mapping.ready, "during": mapping.during}
        given = {"ready": mapping.args.ready, "during": mapping.args.during}
        needed = {"ready": self.ready, "during": [node.during for node in self.nodes]}
        missing = {
            key: [word for word in words if word not in served[key]]
            for key, words in needed.items()
        }
        if any(missing.values()):
            full = ", ".join(f"{key!r}: {[*given[key], *words]}" for key, words in missing.items())
            raise ArgumentError(
                f"the indexes of {mapping} do not serve every step: write {full} in "
                f"{mapping}.__queue_args__, and migrate its indexes (docs/workflows.md)"
            )
