"""The errors of drivers behind an error, whatever an application makes of them."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy.exc import DBAPIError


def driver_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of drivers behind an error.

    An application's handle_error listener may raise the driver's own exception, or another one
    that it caused.
    """
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        cause = chain.pop(0)
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        if isinstance(cause, DBAPIError):
            if cause.orig is not None:
                seen.add(id(cause.orig))
                yield cause.orig
                chain.append(cause.orig.__cause__)
                if cause.orig.__cause__ is not None:
                    seen.add(id(cause.orig.__cause__))
                    yield cause.orig.__cause__
        elif is_of_driver(cause):
            yield cause
        chain.append(cause.__cause__)


def is_of_driver(error: BaseException) -> bool:
    """Tell whether an exception is of a driver, by PEP 249's names or a SQLSTATE."""
    names = {base.__name__ for base in type(error).__mro__}
    return "DatabaseError" in names or getattr(error, "sqlstate", None) is not None


def is_integrity_error(error: BaseException) -> bool:
    """Tell whether a constraint refuses a row."""
    return any(
        base.__name__ == "IntegrityError"
        for cause in (error, *driver_errors(error))
        for base in type(cause).__mro__
    )
