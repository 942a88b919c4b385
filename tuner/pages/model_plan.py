"""What the graph of a model decides, for its section of a page: the plan, and its graph drawn.

Graphs are recorded with latencies, plans by themselves: either may be there without the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from statistics import fmean
from typing import Any

from tunefarm import compiler
from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.plan.choices.program_steps import ProgramStep
from tunefarm.compiler.plan.decisions.graph_plan import RULES
from tunefarm.db.records import LatencyRecord, PlanRecord
from tunefarm.tuner.building.recorded_plan import BY_GRAPH
from tunefarm.tuner.pages.layout_colours import colours_of, legend_of
from tunefarm.tuner.pages.model_graph import Drawing, drawing_of
from tunefarm.tuner.records.graph_choice import GraphChoice
from tunefarm.tuner.records.model_graphs import ModelGraphs
from tunefarm.tuner.records.model_latencies import MeasuredModel, ModelStep
from tunefarm.tuner.reports.gains import gain_class
from tunefarm.tuner.reports.report import format_bytes, format_seconds, format_time

NO_GRAPH = {"by_rules": None, "legend": (), "plan_kernels": ()}
"""What `planned_parts` gives where no graph was recorded, beside the drawing."""
MOST_DECISIONS = 1_000
MOST_KERNELS = 40
_CONVERSIONS = ({"to_blocked"}, {"from_blocked"}, {"to_blocked", "from_blocked"})
_CONTRACTIONS = ("conv", "matmul", "weight_product")
_POOL = "_pool"
_MERGED = "_merged"


def plan_of(record: LatencyRecord, plans: Sequence[PlanRecord]) -> dict[str, Any] | None:
    """The newest plan of the graph of a measured model, if one was recorded and can be read."""
    for plan in plans:
        same = (plan.model_hash, plan.target, plan.threads, plan.numerics)
        if same != (record.model_hash, record.target, record.threads, record.numerics + BY_GRAPH):
            continue
        try:
            return _plan(plan, GraphChoice.from_json(plan.plan))
        except PlanError:
            continue
    return None


def _plan(record: PlanRecord, choice: GraphChoice) -> dict[str, Any]:
    decisions = choice.plan.decisions[:MOST_DECISIONS]
    by_kind = groupby(decisions, key=lambda item: item.kind)
    is_other = record.compiler_version != compiler.VERSION
    return {
        "id": record.id[:12],
        "created": format_time(record.created),
        "told": "the rules decide" if choice.plan == RULES else str(choice),
        "gain_class": _gain_class(choice),
        "seconds": "" if choice.seconds is None else format_seconds(choice.seconds),
        "arena": "" if choice.arena_bytes is None else format_bytes(choice.arena_bytes),
        "notes": choice.part_lines,
        "found": ", ".join(f"{count} {name}" for name, count in choice.found.items()),
        "decisions": len(choice.plan.decisions),
        "kinds": [
            {"kind": kind, "lines": [str(item) for item in items]} for kind, items in by_kind
        ],
        "version": record.compiler_version if is_other else "",
    }


def _gain_class(choice: GraphChoice) -> str:
    """As that of other gains; plans that need less memory may be slower than the rules."""
    low, high = choice.low, choice.high
    if choice.plan == RULES or low is None or high is None or not 0.0 < low <= high:
        return "same"
    return gain_class(1.0 / high, 1.0 / low)


def graphs_of(group: Sequence[MeasuredModel], steps: Sequence[ModelStep]) -> ModelGraphs | None:
    """What the newest record of a model that knows it says of these steps' graph."""
    for found in group:
        if found.times.graphs is not None and found.times.graphs.is_of(steps):
            return found.times.graphs
    return None


def planned_parts(
    steps: Sequence[ModelStep], graphs: ModelGraphs, anchors: Mapping[str, str], *, both: bool
) -> dict[str, Any]:
    """Drawings with layouts, their legend, and the kernels that the rules would not have made.

    The graph by the rules is drawn if `both` are to be, and if a plan is applied.
    """
    before = [step.layout for step in graphs.rules]
    after = [step.layout for step in graphs.applied]
    colours = colours_of([*before, *after])
    by_rules: Drawing | None = None
    if graphs.planned and both:
        by_rules = drawing_of(_untimed(graphs.rules, steps), anchors, graphs.rules, colours)
    return {
        "drawing": drawing_of(steps, anchors, _aligned(steps, graphs.applied), colours),
        "by_rules": by_rules,
        "legend": [asdict(entry) for entry in legend_of(before, after, colours)],
        "is_planned": bool(graphs.planned),
        "changes": _changes(graphs) if graphs.planned else "",
        "plan_kernels": _kernels(graphs, steps, anchors),
    }


def _aligned(
    steps: Sequence[ModelStep], graph: Sequence[ProgramStep]
) -> tuple[ProgramStep | None, ...]:
    """What the graph knows of each step; nothing of copies."""
    known = iter(graph)
    return tuple(next(known) if step.key else None for step in steps)


def _untimed(graph: Sequence[ProgramStep], steps: Sequence[ModelStep]) -> tuple[ModelStep, ...]:
    """The graph's steps; kernels that were timed in other places have their times from there."""
    seconds = _seconds(steps)
    return tuple(
        ModelStep(step.name, step.key, seconds.get(step.key), step.reads) for step in graph
    )


def _seconds(steps: Sequence[ModelStep]) -> dict[str, float]:
    """The mean time of each kernel's calls."""
    found: dict[str, list[float]] = {}
    for step in steps:
        if step.seconds is not None:
            found.setdefault(step.key, []).append(step.seconds)
    return {key: fmean(times) for key, times in found.items()}


def _changes(graphs: ModelGraphs) -> str:
    rules, planned = graphs.rules, graphs.planned
    told = f"{len(rules)} steps by the rules, {len(planned)} with the plan"
    before, after = (sum(is_conversion(step) for step in found) for found in (rules, planned))
    return f"{told}; {before} and {after} of them only convert layouts" if before + after else told


def is_conversion(step: ProgramStep) -> bool:
    """Whether a step does nothing but bring a value from one layout to another."""
    return set(step.operators) in _CONVERSIONS


def _kernels(
    graphs: ModelGraphs, steps: Sequence[ModelStep], anchors: Mapping[str, str]
) -> list[dict[str, str]]:
    """The distinct kernels whose operators no kernel by the rules has: merged, chained, cut."""
    known = {step.operators for step in graphs.rules}
    seconds = _seconds(steps)
    found: dict[str, list[ProgramStep]] = {}
    for step in graphs.planned:
        is_new = step.operators not in known or _is_merged(step)
        if is_new and not is_conversion(step):
            found.setdefault(step.key, []).append(step)
    rows = []
    for key, calls in list(found.items())[:MOST_KERNELS]:
        first = calls[0]
        rows.append(
            {
                "name": first.name,
                "anchor": anchors.get(key, ""),
                "kind": kind_of(first),
                "operators": ", ".join(first.operators),
                "values": ", ".join(call.value for call in calls[:8]),
                "calls": str(len(calls)),
                "seconds": format_seconds(seconds[key]) if key in seconds else "-",
            }
        )
    return rows


def kind_of(step: ProgramStep) -> str:
    """What a kernel that the rules do not make is: merged, chained, or else grouped otherwise."""
    if _is_merged(step):
        return "merged"
    heavy = [name for name in step.operators if name in _CONTRACTIONS or name.endswith(_POOL)]
    return "chain" if len(heavy) > 1 else "cut otherwise"


def _is_merged(step: ProgramStep) -> bool:
    return _MERGED in step.value
