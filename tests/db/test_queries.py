"""Queries use the indices that were made for them."""

from __future__ import annotations

from sqlalchemy import event

from tests.db.examples import KEY, populate, trial
from tunefarm.db import queries
from tunefarm.db.store import Store


def plan(question: str, *arguments: int) -> str:
    """SQLite's plans for the statements of a query."""
    with Store.open(":memory:") as store:
        populate(store)
        store.add([trial(1)])
        statements = []

        def remember(_connection: object, _cursor: object, *statement: object) -> None:
            statements.append(statement[:2])

        event.listen(store.engine, "before_cursor_execute", remember)
        getattr(queries, question)(store, KEY, *arguments)
        event.remove(store.engine, "before_cursor_execute", remember)
        steps = []
        with store.reading() as session:
            for text, parameters in statements:
                assert isinstance(text, str)
                assert isinstance(parameters, tuple)
                explain = f"EXPLAIN QUERY PLAN {text}"
                rows = session.connection().exec_driver_sql(explain, parameters)
                steps += [row[3] for row in rows]
        return "\n".join(steps)


def test_fastest_trial_reads_one_row_of_the_partial_index() -> None:
    steps = plan("fastest_trial")
    assert "INDEX ix_trials_best (task_id=?)" in steps
    assert "SCAN" not in steps
    assert "TEMP B-TREE" not in steps


def test_trials_of_a_task_are_found_by_index() -> None:
    assert "SCAN" not in plan("trials")


def test_what_is_applied_is_found_by_indices() -> None:
    assert "INDEX ix_trials_confirmed (task_id=?)" in plan("finalists")
    for question in ("best", "finalists"):
        assert "SCAN" not in plan(question)


def test_contenders_are_found_by_indices() -> None:
    steps = plan("contenders", 8)
    assert "INDEX ix_trials_best (task_id=?)" in steps
    assert "(task_id=? AND schedule_hash=?)" in steps
    assert "SCAN" not in steps
