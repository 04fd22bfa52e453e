"""Checks of the claim's index, of the index of reap(), and of the claim's plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from sqlalchemy import Index
from sqlalchemy.exc import DBAPIError

from ..dialects.examination import Answer, Plan, ServerIndex, Severity
from ..model.indexes import failed_index, key_index
from ..strategies import KeyLimit
from .case import Case, Search
from .wanted_index import (
    WantedIndex,
    as_declared,
    compared_for_equality,
    create_statement,
    is_ordered,
    lacks_criterion,
    name_of,
    order_text,
    range_before_order,
    same_predicate,
)

#: A plan that reads no more rows than this, and so many for each job, is good enough.
FEW_ROWS = 1_000
FEW_ROWS_A_JOB = 10


# -- the index of the claim ---------------------------------------------


def check_index(case: Case) -> Iterator[Answer]:
    """Look for the index that the claim wants."""
    ranged = range_before_order(case.spec)
    lacking = lacks_criterion(case.spec)
    if ranged is not None:
        yield _unservable_order(case, ranged)
    elif lacking:
        yield _without_criterion(case, lacking)
    elif case.claim.wanted.order is not None:  # check_plan judges an order by expressions
        yield _best_index(case.claim)
    for limit in case.spec.limits:
        if limit.serial or len(case.spec.limits) == 1:
            yield from _key_index(case, limit)


def _key_index(case: Case, limit: KeyLimit) -> Iterator[Answer]:
    """Look for the index that finds the next job of each key."""
    index, reads = key_index(case.mapping, limit.columns), "claims read all unclaimed jobs of a key"
    missing = f"no index finds the next job of each {limit}"
    if index is not None:
        yield from _declared(case, index, missing, reads, online=True)
        return
    names = [column.key for column in limit.columns]
    key = f'["{names[0]}"]' if len(names) == 1 else f"[{tuple(names)}]"
    declare = f'__queue_args__ = {{"per_key": {key}}} in the model'
    yield Answer.warning(f"{missing}: {reads}", declare)


def _without_criterion(case: Case, lacking: list[str]) -> Answer:
    """Ask for the queue with its criterion: a class alone is not what its workers claim."""
    entity, columns = case.mapping.entity.__name__, " and ".join(lacking)
    compared = ", ".join(f"{entity}.{each.key} == .." for each in case.mapping.equality)
    return Answer.error(
        f'the claim index of {entity} begins with {columns} (__queue_args__["equality"]), and this '
        "queue has no criteria: no index serves the claim of all jobs",
        f"give the queue with its criterion, as in JobQueue({entity}, {compared}), also to the "
        f"doctor; or take {columns} out of equality",
    )


def _unservable_order(case: Case, ranged: str) -> Answer:
    order = order_text(case.spec)
    columns = ", ".join([*compared_for_equality(case.spec), "round", order])
    return Answer.error(
        f"no index can serve ORDER BY {order} beside a range of {ranged}: an index bounded by the "
        "range gives its rows in the order of the range, so each claim sorts all jobs that are due",
        f"claim in the order of {ranged}, or in no order; or use rounds: keep in each row the "
        "number of its round, and compare the number for equality instead of the range; then an "
        f"index of ({columns}) serves both",
    )


# -- the index of reap() ------------------------------------------------


def check_reap(case: Case) -> Iterator[Answer]:
    """Look for the index that reap() wants."""
    if case.reap is None:
        return
    answer = _best_index(case.reap)
    if answer.severity is Severity.ERROR:  # claims do not need this index
        answer = replace(answer, severity=Severity.WARNING)
    yield answer


# -- the index of failed jobs -------------------------------------------


def check_failed(case: Case) -> Iterator[Answer]:
    """Look for the index of failed jobs, where the model declares it."""
    index = failed_index(case.mapping)
    if index is not None:
        missing = "the index of failed jobs is missing"
        yield from _declared(case, index, missing, "failed jobs are neither counted nor listed")


# -- an index of the model that is no claim index and no reap index -----


def _declared(
    case: Case, index: Index, missing: str, effect: str, *, online: bool = False
) -> Iterator[Answer]:
    """Look for an index as the model declares it, by its name.

    Args:
        missing: says that it is not there.
        effect: what then happens.
        online: whether to name the helper that makes it in a migration.
    """
    dialect = case.connection.dialect
    there = next((each for each in case.indexes if each.name == name_of(index, dialect)), None)
    fault = missing if there is None else _difference(case, there, as_declared(index))
    if fault is None:
        return
    drop = "" if there is None else f"drop {there.name}, then "
    helper = _while_others_write(case.mapping, replace=there is not None) if online else ""
    create = create_statement(index, dialect)
    yield Answer.warning(f"{fault}: {effect}", f"{drop}{create}{helper}")


def _difference(case: Case, there: ServerIndex, wanted: WantedIndex) -> str | None:
    """Say why an index with the name of the wanted one does not do for it; None: it does."""
    if there.unusable:
        return f"{there} serves no statement, since {there.unusable}"
    predicate = wanted.predicate(case.examination, case.connection.dialect)
    same_rows = there.predicate is None or same_predicate(there.predicate, predicate)
    if same_rows and (wanted.order is None or wanted.fitted_by(there, predicate)):
        return None
    where = f" WHERE {predicate}" if predicate else ""
    return f"{there} is not the model's index of {wanted}{where}"


# -- either index -------------------------------------------------------


def _best_index(search: Search) -> Answer:
    """Judge the best of the indexes that the table has for a search."""
    if search.serving:
        return _served(search)
    if search.fitting and search.possible.walks(names_of(search.fitting)):
        return _served_by_another_predicate(search)
    return Answer.error(_misfit_text(search), index_fix(search))


def _served(search: Search) -> Answer:
    index = search.serving[0]
    holds_all_rows = all(serving.predicate is None for serving in search.serving)
    if search.predicate is not None and holds_all_rows:
        return Answer.warning(
            f"{index} serves {search.who}, but it holds every row of the table, also the finished "
            f"jobs, and grows with them; the rows WHERE {search.predicate} would do",
            index_fix(search),
        )
    return Answer(f"{index} fits {search.who}")


def _served_by_another_predicate(search: Search) -> Answer:
    index = search.fitting[0]
    if search.predicate is None:
        return Answer(f"{index} fits {search.who}")
    return Answer.warning(
        f"{index} serves {search.who}, but the model's index holds the rows "
        f"WHERE {search.predicate}. Alembic does not see that the predicate has changed",
        index_fix(search),
    )


def _misfit_text(search: Search) -> str:
    """Return what is wrong with the index that comes nearest."""
    named = [index for index in search.case.indexes if index.name == search.name]
    for index in [*named, *search.fitting]:
        if index.unusable:
            return f"{index} serves no statement: {index.unusable}"
        if index in search.fitting:
            return f"the predicate of {index} does not fit {search}"
        return (
            f"{index} does not fit {search}, which reads and sorts rows that it does not take; a "
            "claim locks them, too"
        )
    return f"no index serves {search}: it reads, and sorts, many rows for each row that it takes"


def index_fix(search: Search) -> str:
    """Return how the table gets the wanted index."""
    create = search.wanted.create_statement(search.case.connection.dialect)
    there = any(index.name == search.name for index in search.case.indexes)
    drop = f"drop {search.name}, then " if there else ""
    return f"{drop}{create}{_migration_text(search, replace=there)}"


def _migration_text(search: Search, *, replace: bool) -> str:
    """Name the helper for a migration, and what keeps autogenerate from dropping the index."""
    if search.wanted.of_model:
        return _while_others_write(search.case.mapping, replace=replace)
    declare = "; declare it in the model's __table_args__ too, or the next autogenerate drops it"
    if search is search.case.claim:
        return f"{_while_others_write('queue', replace=replace)}{declare}"
    return declare


def _while_others_write(what: object, *, replace: bool = False) -> str:
    """Name the helper that makes an index online."""
    more = ", replace=True" if replace else ""
    return f" (while others write: sa_jobqueue.migration.create_job_indexes(op, {what}{more}))"


def names_of(indexes: Iterable[ServerIndex]) -> frozenset[str]:
    """Return the names of indexes."""
    return frozenset(index.name for index in indexes)


# -- the plan of the claim ----------------------------------------------


def check_plan(case: Case) -> Iterator[Answer]:
    """Read from EXPLAIN whether the index serves the claim without a sort."""
    if range_before_order(case.spec) is not None or lacks_criterion(case.spec):
        return  # check_index reports it
    search = case.claim
    try:
        chosen = search.chosen
    except DBAPIError as error:
        if error.orig is None or not case.database.is_missing_index(error.orig):
            raise
        yield Answer.error(
            f"the claim names the index {search.name}, which is missing: it claims without the "
            "index, and locks more rows than it takes",
            index_fix(search),
        )
        return
    names = names_of(search.fitting)
    if chosen.walks(names):
        yield Answer(f"the claim walks {_joined(chosen.indexes & names)}, and sorts nothing")
    elif search.possible.walks(names):
        yield _not_chosen(case, chosen, names)
    else:
        yield from _not_walkable(case)


def _not_chosen(case: Case, chosen: Plan, names: frozenset[str]) -> Answer:
    """Judge a planner that does not walk the index that serves the claim."""
    way = f"uses {_joined(chosen.indexes)}" if chosen.indexes else "reads the whole table"
    does = f"{way} and sorts" if chosen.sorts else way
    if not is_ordered(case.spec) and not chosen.sorts:  # it stops reading when the batch is full
        return Answer(
            f"the planner expects so many due rows that it {way} until the batch is full; with "
            f"fewer, the claim walks {_joined(names)}"
        )
    few = FEW_ROWS + FEW_ROWS_A_JOB * case.limit
    if chosen.rows is not None and chosen.rows > few:
        return Answer.warning(
            f"the claim could walk {_joined(names)}, but {does}: {chosen.rows:,} rows by the "
            "planner's estimate",
            analyze_fix(case),
        )
    return Answer(
        f"the planner expects so few rows that it {does}; with more, the claim "
        f"walks {_joined(names)}, and sorts nothing"
    )


def analyze_fix(case: Case) -> str:
    """Return what tells the planner how many rows there are."""
    table = case.mapping.table.fullname
    return f"ANALYZE the table ({table}): the planner's statistics are old or missing"


def check_statistics(case: Case) -> Iterator[Answer]:
    """Tell how many rows the planner does not know of."""
    rows = case.database.unanalyzed_rows(case.connection, case.mapping.table)
    if rows:
        yield Answer.warning(
            f"{rows:,} rows have changed since the table was analyzed, more than it had then: the "
            "planner may expect few due jobs, and have each claim read and sort all of them",
            f"{analyze_fix(case)}; see that autovacuum runs, which does it within minutes",
        )


def _not_walkable(case: Case) -> Iterator[Answer]:
    search = case.claim
    plan = search.possible
    if plan.sorts:
        yield Answer.error(
            f"the claim sorts: no index gives its rows in the order {order_text(case.spec)}",
            index_fix(search),
        )
    elif search.wanted.order is None:
        yield Answer(f"the claim walks {_joined(plan.indexes)}, and sorts nothing")
    elif search.serving:
        way = f"it takes {_joined(plan.indexes)}" if plan.indexes else "it reads the whole table"
        yield Answer.error(
            f"the planner does not walk {_joined(names_of(search.fitting))}, though it fits: {way}",
            f"{analyze_fix(case)}; where that does not help, drop the index that it takes instead",
        )


def _joined(names: frozenset[str]) -> str:
    return " and ".join(sorted(names))
