"""Tell the hooks of the application's session that a verb writes.

The verbs write with statements on tables, past the session. An extension that asks whether a
session was written to, such as zope.sqlalchemy, listens to flushes and to the UPDATEs of
entities. Without our announcement it would consider the session unchanged, and roll back.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import event, false
from sqlalchemy.engine.result import IteratorResult, Result, SimpleResultMetaData
from sqlalchemy.orm import ORMExecuteState, Query, Session

from ..model.mapping import QueueMapping

#: The execution option of an UPDATE that the hooks see and the database does not.
ANNOUNCED = "sa_jobqueue_write"


def has_execute_hooks(session: Session) -> bool:
    """Tell whether do_orm_execute hooks may add criteria to the session's SELECTs."""
    return bool(session.dispatch.do_orm_execute)


def announce_write(session: Session, mapping: QueueMapping, *, hooked: bool) -> None:
    """Tell the session's hooks that a verb writes to rows of a mapped class.

    They see an UPDATE of the class by do_orm_execute and after_bulk_update, with a WHERE that
    is false and the execution option ANNOUNCED. The database does not get this UPDATE: the last
    hook, which is ours, answers it. A hook that refuses writes raises before the verb has written.

    Args:
        hooked: what :func:`has_execute_hooks` returns.
    """
    if not (hooked or session.dispatch.after_bulk_update):
        return
    status = mapping.attributes.get("status")
    query: Query[Any] = Query(mapping.entity, session).filter(false())
    query = query.execution_options(**{ANNOUNCED: True})
    values: dict[Any, Any] = {} if status is None else {status: mapping.attribute("status")}
    event.listen(session, "do_orm_execute", _answered)
    try:
        query.update(values, synchronize_session=False)
    finally:
        event.remove(session, "do_orm_execute", _answered)


class _NoRows(IteratorResult[Any]):
    rowcount = 0


def _answered(state: ORMExecuteState) -> Result[Any] | None:
    if ANNOUNCED not in state.execution_options:
        return None
    return _NoRows(SimpleResultMetaData([]), iter(()))
