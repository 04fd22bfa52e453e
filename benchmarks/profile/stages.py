"""CPU time by stage: SQLAlchemy's functions are wrapped while it is measured.

Time that passes inside a verb of ours, but inside none of these functions, is our own code's. The
list names functions that SQLAlchemy does not promise to keep; if one is gone, measuring fails with
its name.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from sqlalchemy.engine import Connection, Dialect, Result, ScalarResult
from sqlalchemy.engine.cursor import CursorFetchStrategy
from sqlalchemy.orm import Session, bulk_persistence, context, loading
from sqlalchemy.sql.elements import ClauseElement

OUR_CODE, STATEMENT, EXECUTION, DRIVER = "our own code", "statement", "execution", "driver"
RESULT, ENTITIES, TRANSACTION = "result", "entities", "transaction"

#: The order of the tables' columns.
STAGES = (DRIVER, STATEMENT, EXECUTION, RESULT, ENTITIES, TRANSACTION, OUR_CODE)

CALIBRATION = 20_000


class Stopwatch:
    """Divides CPU time among stages: time counts for the innermost stage.

    Attributes:
        own: seconds of each stage.
        entered: how often each stage was entered.
        left: how often a stage inside of it was entered.
    """

    def __init__(self) -> None:
        self.own = dict.fromkeys(STAGES, 0.0)
        self.entered: Counter[str] = Counter()
        self.left: Counter[str] = Counter()
        self._stack: list[str] = []
        self._since = 0.0

    @contextmanager
    def on(self, stage: str) -> Iterator[None]:
        """Measure a whole call; time that no other stage takes counts for this stage."""
        self._enter(stage)
        try:
            yield
        finally:
            self._leave()

    def wrapped(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        """Wrap a function: while a call is measured, its time counts for this stage."""
        stack, enter, leave = self._stack, self._enter, self._leave

        @wraps(function)
        def timed(*args: Any, **kw: Any) -> Any:
            if not stack:
                return function(*args, **kw)
            enter(stage)
            try:
                return function(*args, **kw)
            finally:
                leave()

        return timed

    def _enter(self, stage: str) -> None:
        now = time.thread_time()
        if self._stack:
            outer = self._stack[-1]
            self.own[outer] += now - self._since
            self.left[outer] += 1
        self.entered[stage] += 1
        self._stack.append(stage)
        self._since = time.thread_time()

    def _leave(self) -> None:
        now = time.thread_time()
        self.own[self._stack.pop()] += now - self._since
        self._since = time.thread_time()

    def corrected(self) -> dict[str, float]:
        """Return the seconds of each stage, without what the measuring itself cost."""
        inside, outside = _cost()
        cost = {
            stage: self.entered[stage] * inside + self.left[stage] * outside for stage in STAGES
        }
        return {stage: max(0.0, self.own[stage] - cost[stage]) for stage in STAGES}


def _cost() -> tuple[float, float]:
    """Measure what a wrapped call costs its own stage, and the stage around it."""
    watch = Stopwatch()
    nothing = watch.wrapped(lambda: None, DRIVER)
    with watch.on(OUR_CODE):
        for _ in range(CALIBRATION):
            nothing()
    begun = time.thread_time()
    for _ in range(CALIBRATION):
        _nothing()
    plain = (time.thread_time() - begun) / CALIBRATION
    return watch.own[DRIVER] / CALIBRATION, watch.own[OUR_CODE] / CALIBRATION - plain


def _nothing() -> None: ...


@contextmanager
def watched(dialect: Dialect) -> Iterator[Stopwatch]:
    """Wrap what SQLAlchemy does for a verb; unwrap it at the end."""
    watch = Stopwatch()
    changed: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, stage in _wrapped_functions(dialect):
            before = vars(owner)[name]
            changed.append((owner, name, before))
            setattr(owner, name, _wrap(watch, before, stage))
        yield watch
    finally:
        for owner, name, before in reversed(changed):
            setattr(owner, name, before)


def _wrap(watch: Stopwatch, function: Any, stage: str) -> Any:
    if isinstance(function, classmethod):
        return classmethod(watch.wrapped(function.__func__, stage))
    wrapped = watch.wrapped(function, stage)
    if function is not loading._instance_processor:
        return wrapped

    # It returns a function that makes an entity of a row.
    def processor(*args: Any, **kw: Any) -> Any:
        return watch.wrapped(wrapped(*args, **kw), ENTITIES)

    return processor


def _wrapped_functions(dialect: Dialect) -> Iterator[tuple[Any, str, str]]:
    """List functions: their owner, their name, their stage."""
    yield ClauseElement, "_compile_w_cache", STATEMENT
    for module in (context, bulk_persistence):
        for found in vars(module).values():
            defined_here = getattr(found, "__module__", None) == module.__name__
            if defined_here and "orm_pre_session_exec" in getattr(found, "__dict__", ()):
                yield found, "orm_pre_session_exec", STATEMENT
    for name in ("execute", "exec_driver_sql"):
        yield Connection, name, EXECUTION
    yield Session, "execute", EXECUTION
    for name in ("do_execute", "do_executemany", "do_commit", "do_rollback", "do_begin"):
        yield _definer(type(dialect), name), name, DRIVER
    yield CursorFetchStrategy, "fetchall", DRIVER
    for name in ("all", "first", "scalar_one", "scalars"):
        yield Result, name, RESULT
    yield ScalarResult, "all", RESULT
    yield loading, "instances", ENTITIES
    yield loading, "_instance_processor", ENTITIES
    for name in ("commit", "connection"):
        yield Session, name, TRANSACTION


def _definer(cls: type, name: str) -> type:
    return next(base for base in cls.__mro__ if name in vars(base))
