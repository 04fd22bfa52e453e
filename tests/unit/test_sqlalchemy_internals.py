"""What we need of SQLAlchemy without a promise of its documentation: a change of it fails here.

The list has the name of every such use in the package. A new use needs a line
there, and a test of a public door that fails when SQLAlchemy changes what is used.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import sa_jobqueue

PACKAGE = Path(sa_jobqueue.__file__).parent

#: The uses of what has no documentation. `_transaction` is Alembic's; the tests of migrations
#: need it, and those of asyncio need `await_only` and `greenlet_spawn`.
USES = {
    "SimpleResultMetaData",
    "_EventKey",
    "_is_clean",
    "_mariadb_normalized_version_info",
    "_max_overflow",
    "_register_altered",
    "_remove_newly_deleted",
    "_transaction",
    "_type_affinity",
    "_variant_mapping",
    "await_only",
    "dispatch",
    "greenlet_spawn",
}

#: Modules of SQLAlchemy with a page in its documentation, and names of others that have one.
DOCUMENTED = {
    "sqlalchemy",
    "sqlalchemy.engine",
    "sqlalchemy.engine.url",
    "sqlalchemy.exc",
    "sqlalchemy.ext.asyncio",
    "sqlalchemy.ext.compiler",
    "sqlalchemy.ext.horizontal_shard",
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
    "set_attribute",
    "set_committed_value",
}

#: Of a row: they begin with an underscore since a column could have the name.
OF_ROWS = {"_asdict", "_fields", "_mapping"}

#: Drivers' attributes, which getattr() asks for.
OF_DRIVERS = {"_conn", "_backend_key_data", "_sock", "_transport", "_usock", "_writer"}


def test_no_other_internals_of_sqlalchemy_are_used() -> None:
    found = {
        name
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
