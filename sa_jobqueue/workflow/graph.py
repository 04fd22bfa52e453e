"""The graph of a workflow: which statuses there are, and where a job may go from each.

It is put together while the user's module is imported, and checked when it is first
used: a step is often declared before the one that it leads to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
    """What a step is in the graph: statuses, in the table's own words.

    Attributes:
        ready: where its jobs wait.
        during: where they are while somebody has them.
        targets: where its handler may send them: `then` first, then the branches.
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
        further_final: where jobs end, beside done, failed and cancelled.
        waiting: for each status in which jobs wait for a signal, those that signals
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
            ArgumentError: it cannot be a status, or is not of the workflow's enum.
        """
        word = word_of(self.mapping, status)
        if self.statuses is not None and word not in {*self._of_enum, *self._of_library}:
            raise ArgumentError(f"{word!r} is no member of {self.statuses.__name__}")
        return word

    def plain(self, status: str) -> str:
        """Return the word of a status that may be of this workflow or not."""
        if isinstance(status, JobStatus):
            return self.mapping.word(status)
        return str(status.value) if isinstance(status, Enum) else status

    def words(self, statuses: Iterable[str]) -> tuple[str, ...]:
        """Return the words of several statuses, or of a single one, each once."""
        several = (statuses,) if isinstance(statuses, str) else statuses
        return tuple(dict.fromkeys(map(self.word, several)))

    def add(self, node: Node) -> None:
        """Add a step."""
        self.nodes.append(node)
        self._checked = False

    def add_waiting(self, status: str, signals: tuple[str, ...]) -> None:
        """Add a status in which jobs wait for a signal."""
        self.waiting[status] = signals
        self._checked = False

    # -- what there is --------------------------------------------------

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
        """The statuses that no job leaves by itself."""
        ends = map(self.mapping.word, FINISHED)
        return tuple(dict.fromkeys((*ends, *self.further_final)))

    @property
    def done(self) -> str:
        """The word for a done job."""
        return self.mapping.word(DONE)

    def is_final(self, word: str) -> bool:
        """Tell whether a job ends there."""
        return word in self.final

    def waits(self, word: str) -> bool:
        """Tell whether a job waits there: for a claim, or for a signal."""
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

    @property
    def unreached(self) -> tuple[str, ...]:
        """The members of the enum that no job comes to from the status of a new row."""
        ways: dict[str, set[str]] = {}
        for arrow in self.arrows:
            if arrow.verb != "retry":
                ways.setdefault(arrow.before, set()).add(arrow.after)
        reached, found = set[str](), {self.initial}
        while found:
            reached |= found
            found = set().union(*(ways.get(word, ()) for word in found)) - reached
        return tuple(word for word in self._of_enum if word not in reached)

    @property
    def _of_enum(self) -> list[str]:
        members = () if self.statuses is None else self.statuses
        return [word_of(self.mapping, member) for member in members]  # type: ignore[arg-type]  # a str enum's

    @property
    def _of_library(self) -> set[str]:
        return set(map(self.mapping.word, JobStatus))

    # -- what may be ----------------------------------------------------

    def check_target(self, node: Node, word: str) -> None:
        """Refuse to send a job of a step where the step does not lead.

        Raises:
            InvalidTransition: which names where it leads.
        """
        if word not in node.targets:
            raise InvalidTransition(node.during, word, node.targets)

    def sources_of(self, signal: str) -> tuple[str, ...]:
        """Return the statuses that a signal of this word moves jobs from.

        Raises:
            InvalidTransition: from none; it names what signals there are.
        """
        sources = tuple(word for word, signals in self.waiting.items() if signal in signals)
        if not sources:
            known = dict.fromkeys(word for signals in self.waiting.values() for word in signals)
            waiting = " or ".join(self.waiting) or "waiting for a signal"
            raise InvalidTransition(waiting, signal, tuple(known))
        return sources

    # -- whether it can work --------------------------------------------

    def check(self) -> None:
        """Refuse a graph in which jobs would get lost.

        Raises:
            ArgumentError: what is wrong, and what to write instead.
        """
        if self._checked:
            return
        if not self.nodes:
            raise ArgumentError(f"the workflow over {self.mapping} has no step yet")
        self._check_each_once()
        self._check_targets()
        self._check_beginning()
        self._check_indexes()
        self._checked = True

    def _check_each_once(self) -> None:
        roles = [("claimed from", self.ready), ("claimed", [node.during for node in self.nodes])]
        for role, words in roles:
            twice = [word for word, count in Counter(words).items() if count > 1]
            if twice:
                steps = [node.name for node in self.nodes if twice[0] in (node.ready, node.during)]
                raise ArgumentError(
                    f"{twice[0]!r} is the status of jobs {role} in two steps, "
                    f"{' and '.join(steps)}: give each its own"
                )
        roles += [("waiting for a signal", list(self.waiting)), ("final", self.final)]
        seen: dict[str, str] = {}
        for role, words in roles:
            for word in words:
                if word in seen:
                    raise ArgumentError(
                        f"{word!r} cannot be the status both of jobs {seen[word]} and of jobs "
                        f"{role}"
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
                        f"or, where it is an end, Workflow(.., final=[{target!r}])"
                    )

    def _check_beginning(self) -> None:
        if not self.waits(self.initial):
            raise ArgumentError(
                f"new rows of {self.mapping} are {self.initial!r}, and no step claims those. Name "
                f"the beginning: __queue_args__ = {{'names': {{'unclaimed': {self.ready[0]!r}}}}}"
            )

    def _check_indexes(self) -> None:
        wanted = {
            "ready": _missing(self.ready, self.mapping.ready),
            "during": _missing([node.during for node in self.nodes], self.mapping.during),
        }
        if not any(wanted.values()):
            return
        served = {"ready": self.mapping.args.ready, "during": self.mapping.args.during}
        say = ", ".join(f"{key!r}: {[*served[key], *words]}" for key, words in wanted.items())
        raise ArgumentError(
            f"the indexes of {self.mapping} do not serve every step: write {say} in "
            f"{self.mapping}.__queue_args__, and migrate its indexes (docs/workflows.md)"
        )


def _missing(words: Sequence[str], served: Sequence[str]) -> list[str]:
    return [word for word in words if word not in served]
