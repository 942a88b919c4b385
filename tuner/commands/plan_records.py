"""What `tune db list` and `tune db show` print of graph optimization plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tunefarm import compiler
from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.with_count import with_count
from tunefarm.configs.settings import shown_precision
from tunefarm.db import model_queries
from tunefarm.db.records import PlanRecord
from tunefarm.db.store import Store
from tunefarm.tuner.building.recorded_plan import BY_GRAPH
from tunefarm.tuner.records.graph_choice import GraphChoice
from tunefarm.tuner.reports.report import format_seconds, format_time

_DIGITS = 12  # of an id in a line


def plan_list(store: Store) -> list[str]:
    """A line for each plan of a model's graph, the newest of each model and setting."""
    seen: set[tuple[object, ...]] = set()
    lines = []
    for record in _of_graphs(store):
        key = record.model_hash, record.target, record.threads, record.numerics
        if key in seen:
            continue
        seen.add(key)
        others = "".join(f"; {note}" for note in _version_notes(record))
        lines.append(f"plan {record.id[:_DIGITS]} of {_where(record)}: {_text(record)}{others}")
    return lines


def shown_plans(store: Store, start: str) -> list[str]:
    """The plans whose ids begin with `start`: where they came from, and every decision."""
    lines: list[str] = []
    for record in _of_graphs(store):
        if not record.id.startswith(start):
            continue
        lines += [f"plan {record.id} of {_where(record)}, {format_time(record.created)} UTC"]
        lines += [f"  {_text(record)}"]
        lines += [f"  {note}" for note in _version_notes(record)]
        try:
            choice = GraphChoice.from_json(record.plan)
        except PlanError:
            continue
        if choice.seconds is not None:
            lines += [f"  {format_seconds(choice.seconds)} a run"]
        lines += [f"  {line}" for line in choice.part_lines]
        lines += [f"    {decision}" for decision in choice.plan.decisions]
    return lines


def plans_to_json(store: Store, start: str) -> list[dict[str, Any]]:
    """The same as JSON values."""
    return [
        {
            "plan": record.id,
            "model": record.model_name,
            "target": record.target,
            "threads": record.threads,
            "numerics": record.numerics.removesuffix(BY_GRAPH),
            "created": record.created,
            "compiler_version": record.compiler_version,
            "decisions": record.plan,
        }
        for record in _of_graphs(store)
        if record.id.startswith(start)
    ]


def _of_graphs(store: Store) -> Iterator[PlanRecord]:
    return (record for record in model_queries.plans(store) if record.numerics.endswith(BY_GRAPH))


def _where(record: PlanRecord) -> str:
    precision = shown_precision(record.numerics.removesuffix(BY_GRAPH))
    return (
        f"{record.model_name}, {record.target}, {with_count(record.threads, 'thread')}, {precision}"
    )


def _version_notes(record: PlanRecord) -> list[str]:
    """A note if another version of the compiler recorded it."""
    if record.compiler_version == compiler.VERSION:
        return []
    return [f"of version {record.compiler_version} of the compiler: not applied"]


def _text(record: PlanRecord) -> str:
    try:
        return str(GraphChoice.from_json(record.plan))
    except PlanError as error:
        return f"cannot be read: {error.message}"
