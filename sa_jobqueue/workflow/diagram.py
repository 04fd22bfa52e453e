"""A workflow as a Mermaid diagram, to put into documentation that a test compares with it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .graph import Graph

#: Words of Mermaid's own language.
_RESERVED = frozenset({"end", "state", "note", "direction", "class", "classdef", "style", "click"})


def draw(graph: Graph) -> str:
    """Draw how jobs go from status to status.

    The diagram leaves out what is the same in every step: a failed, released or reaped job
    has the step's `ready` status again, or is failed; jobs can be cancelled and retried.
    """
    return "\n".join(["stateDiagram-v2", *(f"    {line}" for line in _lines(graph))])


def _lines(graph: Graph) -> Iterator[str]:
    drawn = [arrow for arrow in graph.arrows if arrow.verb in ("claim", "complete", "signal")]
    words = dict.fromkeys(word for arrow in drawn for word in (arrow.before, arrow.after))
    for word in words:
        if _name(word) != word:
            yield f'state "{word}" as {_name(word)}'
    yield f"[*] --> {_name(graph.initial)}"
    steps = {node.ready: node.name for node in graph.nodes}
    for before, after, verb in drawn:
        label = {"claim": f" : {steps.get(before)}", "signal": " : signal"}.get(verb, "")
        yield f"{_name(before)} --> {_name(after)}{label}"
    for word in words:
        if graph.is_final(word):
            yield f"{_name(word)} --> [*]"


def _name(word: str) -> str:
    """Return a name that Mermaid reads for a status."""
    name = re.sub(r"\W", "_", word)
    return f"{name}_" if name.lower() in _RESERVED else name
