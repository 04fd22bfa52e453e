"""How the arguments and the result of a function travel as JSON, by pydantic."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter
from typing import Any, get_type_hints

from ..errors import ArgumentError

try:
    from pydantic import ConfigDict, JsonValue, TypeAdapter
    from pydantic.errors import PydanticUserError
    from pydantic_core import ValidationError
except ImportError as missing:
    raise ImportError(
        "sa_jobqueue.tasks needs pydantic: pip install sa-jobqueue[tasks]"
    ) from missing

#: Bytes that are no text travel, too.
_CONFIG = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)

#: Integers of more than 64 bits have so many; MySQL and SQLite keep these as floats.
_MANY_DIGITS = re.compile(r"\d{19}")

#: The most characters of a value, and of a call, in a log or on a page.
LONGEST_VALUE, LONGEST_CALL = 40, 160


class Value:
    """A value of one type: a parameter, or the result.

    Args:
        what: names it in errors.
        hidden: no error shows a value.

    Raises:
        ArgumentError: values of this type have no form in JSON.
    """

    def __init__(self, type_: Any, what: str, *, hidden: bool = False) -> None:
        self._what, self._hidden = what, hidden
        wanted: Any = JsonValue if type_ is Any else type_
        try:
            try:
                self._adapter: TypeAdapter[Any] = TypeAdapter(wanted, config=_CONFIG)
            except PydanticUserError as error:
                if error.code != "type-adapter-config-unused":  # a model has its own
                    raise
                self._adapter = TypeAdapter(wanted)
            self._adapter.json_schema(mode="serialization")
        except PydanticUserError as error:
            raise ArgumentError(
                f"{what} is a {inspect.formatannotation(type_)}, which JSON cannot keep: take "
                "what can be written down, such as a key, a number, text, a dataclass or a "
                "pydantic model"
            ) from error

    def dump(self, value: Any) -> Any:
        """Return a value as JSON has it.

        Raises:
            ArgumentError: it is of another type, or JSON cannot keep it, as all databases read it.
        """
        try:
            checked = self._adapter.validate_python(value, strict=True)
            kept = self._adapter.dump_python(checked, mode="json")
            text = json.dumps(kept, allow_nan=False)
            if _MANY_DIGITS.search(text):
                json.loads(text, parse_int=_in_64_bits)
        except ValueError as error:  # as ValidationError and PydanticSerializationError are
            raise ArgumentError(f"{self._what}: {self._reason(error)}") from None
        try:
            self._adapter.validate_json(text)
        except ValidationError as error:
            raise ArgumentError(
                f"{self._what} could not be read back from JSON: {self._reason(error)}"
            ) from None
        return kept

    def load(self, stored: Any) -> Any:
        """Return the value that was kept as JSON.

        Raises:
            ArgumentError: it does not fit the type any more.
        """
        try:
            return self._adapter.validate_json(json.dumps(stored))
        except ValidationError as error:
            raise ArgumentError(
                f"{self._what}, as it was enqueued: {self._reason(error)}"
            ) from None

    def _reason(self, error: Exception) -> str:
        if not isinstance(error, ValidationError):
            return "it is hidden" if self._hidden else str(error)
        first = error.errors(include_url=False)[0]
        if self._hidden:  # keys, and messages of the application's own checks, may show it
            is_own = "error" in first.get("ctx", {})
            return "it does not fit, and is hidden" if is_own else first["msg"]
        where = "".join(f"[{part!r}]" for part in first["loc"])
        return f"{where} {first['msg']}, not {_shortened(repr(first['input']))}".strip()


def _in_64_bits(digits: str) -> int:
    if not -(2**63) <= (number := int(digits)) < 2**63:
        raise ValueError(f"{number} has more than 64 bits: take a Decimal")
    return number


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


@dataclass(frozen=True)
class Signature:
    """The parameters of a function that a task keeps.

    Attributes:
        name: of the task, for errors.
        parameters: without the session of a transactional task.
        hidden: the names of those that no log and no page shows.
    """

    name: str
    parameters: Mapping[str, Parameter]
    values: Mapping[str, Value]
    result: Value | None
    hidden: frozenset[str] = frozenset()

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.Signature([*self.parameters.values()])

    def dump(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call as JSON has them, by the parameters' names.

        Raises:
            ArgumentError: they do not fit the function.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{self.name}{self._signature}: {error}") from error
        return {name: self.values[name].dump(value) for name, value in bound.arguments.items()}

    def load(self, stored: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call that was kept.

        Raises:
            ArgumentError: they do not fit the function any more.
        """
        if not isinstance(stored, dict):  # plain SQL has inserted the row
            raise ArgumentError(f"the arguments of {self.name} are no object of JSON")
        unknown = [name for name in stored if name not in self.parameters]
        if unknown:
            raise ArgumentError(
                f"{self.name}{self._signature} was enqueued with {', '.join(unknown)}, and has no "
                "such parameter any more: keep old parameters until their jobs are done"
            )
        bound = self._signature.bind_partial()
        for name in self.parameters:  # in their order, which the call needs
            if name in stored:
                bound.arguments[name] = self.values[name].load(stored[name])
        try:
            self._signature.bind(*bound.args, **bound.kwargs)
        except TypeError as error:
            raise ArgumentError(
                f"{self.name}{self._signature}, as it was enqueued: {error}: give a new parameter "
                "a default until the older jobs are done"
            ) from error
        return bound.args, bound.kwargs

    def show(self, stored: Any) -> str:
        """Write a call as Python does, shortened, without hidden values.

        Another version, or plain SQL, may have kept what does not fit: that is shown, too.
        """
        if not isinstance(stored, dict):
            return f"{self.name}(…)"
        call = f"{self.name}({', '.join(self._shown(stored))})"
        return call if len(call) <= LONGEST_CALL else f"{call[: LONGEST_CALL - 2]}…)"

    def _shown(self, stored: Mapping[str, Any]) -> Iterator[str]:
        named = False  # after one that is left out, others need their names
        for name, parameter in self.parameters.items():
            if name not in stored:
                named = True
                continue
            value = stored[name]
            if name in self.hidden:
                yield f"{name}=…"
            elif parameter.kind is Parameter.VAR_POSITIONAL and isinstance(value, list):
                yield from (_shortened(repr(each)) for each in value)
            elif parameter.kind is Parameter.VAR_KEYWORD and isinstance(value, dict):
                yield from (f"{key}={_shortened(repr(it))}" for key, it in value.items())
            else:
                text = _shortened(repr(value))
                by_name = named or parameter.kind is Parameter.KEYWORD_ONLY
                yield f"{name}={text}" if by_name else text


def signature_of(
    function: Callable[..., Any], name: str, *, skip: int, hidden: frozenset[str]
) -> Signature:
    """Read the signature of a function.

    Args:
        skip: how many parameters come before those that a task keeps.

    Raises:
        ArgumentError: a parameter has no annotation, or one that JSON cannot keep; a hidden name
            is none of a parameter; or there are too few parameters.
    """
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ArgumentError(
            f"{name}: {error}. The annotations of a task are needed at run time: import the "
            "name outside of TYPE_CHECKING, and declare the task after it"
        ) from error
    parameters = inspect.signature(function).parameters
    by_position = [key for key, it in parameters.items() if it.kind in _BY_POSITION]
    if len(by_position) < skip:
        raise ArgumentError(
            f"a transactional task gets a session before its arguments: write def {name}(session, "
            "..)"
        )
    kept = dict([*parameters.items()][skip:])
    if unknown := sorted(hidden.difference(kept)):
        raise ArgumentError(f"hide= names parameters of {name}, which has no {', '.join(unknown)}")
    values = {}
    for key, parameter in kept.items():
        if key not in hints:
            raise ArgumentError(
                f"the parameter {key} of {name} has no annotation, so nobody knows how to keep it: "
                f"write {key}: int, or whatever it is"
            )
        type_: Any = hints[key]
        kept[key] = parameter.replace(annotation=type_)  # errors show it, not its text
        if parameter.kind is Parameter.VAR_POSITIONAL:
            type_ = tuple[type_, ...]
        elif parameter.kind is Parameter.VAR_KEYWORD:
            type_ = dict[str, type_]
        values[key] = Value(type_, f"{name}: {key}", hidden=key in hidden)
    returned = hints.get("return", type(None))
    result = None if returned is type(None) else Value(returned, f"the result of {name}")
    return Signature(name, kept, values, result, hidden)
