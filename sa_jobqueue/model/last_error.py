"""What ``last_error`` keeps of an error: text that every database stores, of bounded length.

::

    error_text(ValueError("no luck"), 10_000)  # "ValueError: no luck"

A long text keeps both ends: a message says most at its beginning, a traceback at its end.
The length counts characters, not bytes, so no character is cut in two.
"""

from __future__ import annotations

from .mapping import QueueMapping

#: What is kept of an error, in characters: at most 40,000 of the 65,535 bytes that
#: MySQL's TEXT holds.
ERROR_LENGTH = 10_000

#: The shortest column that will do: it holds the longest text that reap() has the database write.
SHORTEST_LENGTH = 100

#: Room for the line that tells how much was left out.
_GAP = 40


def error_length(*mappings: QueueMapping) -> int:
    """Return how many characters fit into the last_error of all of these classes."""
    columns = [mapping.column("last_error") for mapping in mappings if mapping.has("last_error")]
    lengths = [getattr(column.type, "length", None) or ERROR_LENGTH for column in columns]
    return int(min([ERROR_LENGTH, *lengths]))


def error_text(error: str | BaseException | None, length: int = ERROR_LENGTH) -> str | None:
    """Return what last_error keeps of an error, at most `length` characters."""
    if error is None:
        return None
    if isinstance(error, BaseException):
        error = _told(error)
    # Characters that a database refuses must not keep a failure from being written.
    storable = error.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")
    return _shortened(storable, length) or None


def in_ascii(text: str) -> str:
    """Return a text as every column can store it, such as one of MySQL in latin1 or utf8mb3."""
    return text.encode("ascii", "backslashreplace").decode("ascii")


def first_line(error: str | BaseException | None) -> str:
    """Return the beginning of an error, for a line in a log."""
    return (error_text(error) or "").partition("\n")[0][:200]


def _told(error: BaseException) -> str:
    """Return an error's type and message, and after those of a group what its members say."""
    text = f"{type(error).__name__}: {_message(error)}"
    if not isinstance(error, BaseExceptionGroup):
        return text
    return f"{text}: {'; '.join(map(_told, error.exceptions))}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as unprintable:
        return f"(its text raised {type(unprintable).__name__})"


def _shortened(text: str, length: int) -> str:
    """Cut the middle out of a text that is too long."""
    if len(text) <= length:
        return text
    kept = length - _GAP
    begin, end = text[: kept - kept // 2], text[len(text) - kept // 2 :]
    return f"{begin}\n.. {len(text) - kept} characters ..\n{end}"
