"""A workflow as a Mermaid diagram, for the documentation that a test holds to the code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .graph import Graph

#: Words that Mermaid reads as its own.
_RESERVED = frozenset({"end", "state", "note", "direction", "class", "classdef", "style", "click"})


def diagram(graph: Graph) -> str:
    """Draw the ways that jobs go.

    Left out is what is the same in every step: a failed, released or reaped job is back
    where the step claims it from, or failed; jobs can be cancelled and retried.
    """
    return "\n".join(["stateDiagram-v2", *(f"    {line}" for line in _lines(graph))])


def _lines(graph: Graph) -> Iterator[str]:
    drawn = [arrow for arrow in graph.arrows if arrow.verb in ("claim", "complete", "signal")]
    words = dict.fromkeys(word for arrow in drawn for word in (arrow.before, arrow.after))
    for word in words:
        if _name(word) != word:
            yield f'state "{word}" as {_name(word)}'
    yield f"[*] --> {_name(graph.initial)}"
    said = {node.ready: node.name for node in graph.nodes}
    for before, after, verb in drawn:
        label = {"claim": f" : {said.get(before)}", "signal": " : signal"}.get(verb, "")
        yield f"{_name(before)} --> {_name(after)}{label}"
    for word in words:
        if graph.is_final(word):
            yield f"{_name(word)} --> [*]"
    for word in graph.unreached:
        yield f"%% never reached: {word}"


def _name(word: str) -> str:
    """Name a state as Mermaid can read it."""
    name = re.sub(r"\W", "_", word)
    return f"{name}_" if name.lower() in _RESERVED else name
