"""What we need of SQLAlchemy without a promise of its documentation: a change of it fails here.

The first test lists every such use in the package, by file and name. A new use needs a line
there, and a test that fails when SQLAlchemy changes what is used: below, or of a public door.
Inner modules are imported since a use is tested where it stands.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import (
    and_,
)

import sa_jobqueue
from sa_jobqueue.strategies.ready_rows import adapted
from tests.models import Email

PACKAGE = Path(sa_jobqueue.__file__).parent

#: The uses of what has no documentation. `_transaction` is Alembic's; the tests of migrations
#: need it, and those of asyncio need `await_only` and `greenlet_spawn`.
USES = {
    "asyncio/calls.py: await_only",
    "asyncio/calls.py: greenlet_spawn",
    "asyncio/worker.py: await_only",
    "asyncio/worker.py: greenlet_spawn",
    "cli/database.py: greenlet_spawn",
    "cli/work.py: await_only",
    "dialects/connections.py: _EventKey",
    "dialects/connections.py: greenlet_spawn",
    "dialects/mariadb.py: _mariadb_normalized_version_info",
    "migration/runner.py: _transaction",
    "model/columns.py: _type_affinity",
    "model/columns.py: _variant_mapping",
    "sessions/writer.py: SimpleResultMetaData",
    "sessions/writer.py: dispatch",
    "model/mixins.py: _primary_key_argument",
    "sessions/show.py: _remove_newly_deleted",
    "sessions/writer.py: _is_clean",
    "wakeups/listening.py: await_only",
    "worker/connections.py: _max_overflow",
}

#: Modules of SQLAlchemy with a page in its documentation, and names of others that have one.
DOCUMENTED = {
    "sqlalchemy",
    "sqlalchemy.engine",
    "sqlalchemy.engine.url",
    "sqlalchemy.exc",
    "sqlalchemy.ext.asyncio",
    "sqlalchemy.ext.compiler",
    "sqlalchemy.orm",
    "sqlalchemy.orm.exc",
    "sqlalchemy.pool",
    "sqlalchemy.schema",
    "sqlalchemy.sql",
    "sqlalchemy.sql.elements",
    "sqlalchemy.sql.expression",
    "sqlalchemy.sql.functions",
    "sqlalchemy.sql.operators",
    "sqlalchemy.sql.visitors",
    "sqlalchemy.types",
}
DOCUMENTED_NAMES = {
    "IteratorResult",
    "Result",
    "instance_dict",
    "instance_state",
    "set_committed_value",
}

#: Of a row: they begin with an underscore since a column could have the name.
OF_ROWS = {"_asdict", "_fields", "_mapping"}

#: Drivers' attributes, which getattr() asks for.
OF_DRIVERS = {"_backend_key_data", "_sock", "_transport", "_usock", "_writer"}


def test_no_other_internals_of_sqlalchemy_are_used() -> None:
    found = {
        f"{file.relative_to(PACKAGE).as_posix()}: {name}"
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        for name in undocumented(node)
    }

    assert found == USES


def undocumented(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node of the syntax tree takes from inside SQLAlchemy."""
    if isinstance(node, ast.Attribute) and not is_own(node.value):
        if is_private(node.attr) or node.attr == "dispatch":
            yield node.attr
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
        name = node.args[1]
        if isinstance(name, ast.Constant) and is_private(str(name.value)):
            yield str(name.value)
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy"):
        module = node.module or ""
        if module not in DOCUMENTED and not module.startswith("sqlalchemy.dialects"):
            yield from (name.name for name in node.names if name.name not in DOCUMENTED_NAMES)


def is_own(value: ast.expr) -> bool:
    """Tell whether an attribute is of our own object: of self, cls or super(); or of os."""
    return ast.unparse(value) in ("self", "cls", "super()", "renderers", "os")


def is_private(name: str) -> bool:
    own = OF_ROWS | OF_DRIVERS
    return name.startswith("_") and not name.startswith("__") and name not in own


def test_criteria_and_orders_are_said_of_an_alias() -> None:
    other = Email.__table__.alias("other")
    criterion = and_(Email.recipient == "a", Email.subject.is_(None))

    assert str(adapted(criterion, other)) == (
        "other.recipient = :recipient_1 AND other.subject IS NULL"
    )
    assert str(adapted(Email.__table__.c.id.desc(), other)) == "other.id DESC"
    assert str(criterion) == "email.recipient = :recipient_1 AND email.subject IS NULL"
