"""What the graph of a model decides, for its section of a page: the plan, and its graph drawn.

Graphs are recorded with latencies, plans by themselves: either may be there without the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from statistics import fmean
from typing import Any

from tunefarm import compiler
from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.plan.choices.program_steps import ProgramStep
from tunefarm.compiler.plan.decisions.graph_plan import (
    DEFAULT_PLAN,
    PLAIN,
    Chain,
    Decision,
    GraphPlan,
    Layout,
)
from tunefarm.compiler.with_count import with_count
from tunefarm.db.records import LatencyRecord, PlanRecord
from tunefarm.measure.unchanged import is_unchanged
from tunefarm.tuner.building.recorded_plan import BY_GRAPH
from tunefarm.tuner.pages.model_graph import Drawing, colours_of, drawing_of, legend_of
from tunefarm.tuner.records.graph_choice import GraphChoice
from tunefarm.tuner.records.model_graphs import ModelGraphs
from tunefarm.tuner.records.model_latencies import MeasuredModel, ModelStep
from tunefarm.tuner.reports.gains import gain_class
from tunefarm.tuner.reports.report import format_bytes, format_seconds, format_time

NO_GRAPH = {"by_rules": None, "legend": (), "plan_kernels": ()}
"""What `planned_parts` gives where no graph was recorded, in addition to the drawing."""
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
    count = len(choice.plan.decisions)
    is_other = record.compiler_version != compiler.VERSION
    return {
        "id": record.id[:12],
        "created": format_time(record.created),
        "told": "the default plan" if choice.plan == DEFAULT_PLAN else str(choice),
        "summary": _summary(choice),
        "does": does(choice.plan),
        "gain_class": _gain_class(choice),
        "seconds": "" if choice.seconds is None else format_seconds(choice.seconds),
        "arena": "" if choice.arena_bytes is None else format_bytes(choice.arena_bytes),
        "notes": list(choice.notes),
        "found": ", ".join(f"{count} {name}" for name, count in choice.found.items()),
        "decisions": count,
        "counted": with_count(count, "decision"),
        "kinds": [
            {"kind": kind, "lines": [str(item) for item in items]} for kind, items in by_kind
        ],
        "version": record.compiler_version if is_other else "",
    }


def _summary(choice: GraphChoice) -> str:
    """What the plan as a whole gains."""
    if choice.plan == DEFAULT_PLAN:
        return "The default plan: no other plan was found to be faster"
    speed_up, low, high = choice.speedup, choice.low, choice.high
    if speed_up is None or low is None or high is None:
        return "Not confirmed with the whole model"
    if is_unchanged(low, high):
        return "Unchanged: the same build as with the default plan"
    bounds = f"(95 % interval {low:.2f}x to {high:.2f}x)"
    if low <= 1.0 <= high:
        return f"No difference found to the default plan {bounds}"
    return f"{speed_up:.2f}x as fast as the default plan {bounds}"


_BLOCKED, _PLAIN = "{} in a channel-blocked layout", "{} in plain NCHW layout"
_CHAINED = "{} computed tile by tile inside its consumer (fusion)"
_TOGETHER = "{} of matmul/conv with a common input run as one"
_DOES = ((_BLOCKED, "value"), (_PLAIN, "value"), (_CHAINED, "producer"), (_TOGETHER, "group"))


def _does(item: Decision) -> str:
    if isinstance(item, Layout):
        return _PLAIN if item.block == PLAIN else _BLOCKED
    return _CHAINED if isinstance(item, Chain) else _TOGETHER


def does(plan: GraphPlan) -> str:
    """What the decisions of a plan do, in words: how many of each kind, and no names."""
    counts = Counter(map(_does, plan.decisions))
    parts = [(counts[text], text, noun) for text, noun in _DOES]
    return "; ".join(text.format(with_count(count, noun)) for count, text, noun in parts if count)


def _gain_class(choice: GraphChoice) -> str:
    """As that of other gains; plans that need less memory may be slower than the rules."""
    low, high = choice.low, choice.high
    if choice.plan == DEFAULT_PLAN or low is None or high is None or not 0.0 < low <= high:
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
    text = f"{len(rules)} steps by the default plan, {len(planned)} with this plan"
    before, after = (sum(is_conversion(step) for step in found) for found in (rules, planned))
    return f"{text}; {before} and {after} of them only convert layouts" if before + after else text


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
                "values": _values(calls),
                "calls": str(len(calls)),
                "seconds": format_seconds(seconds[key]) if key in seconds else "-",
            }
        )
    return rows


def _values(calls: Sequence[ProgramStep]) -> str:
    """What a kernel's calls give, by names of the model."""
    names = ", ".join(call.value for call in calls[:2])
    return f"{names} and {len(calls) - 2} more" if len(calls) > 2 else names


def kind_of(step: ProgramStep) -> str:
    """How the plan fused a kernel that the default plan does not have."""
    if _is_merged(step):
        return "horizontal fusion"
    heavy = [name for name in step.operators if name in _CONTRACTIONS or name.endswith(_POOL)]
    return "tiled producer-consumer fusion" if len(heavy) > 1 else "other fusion"


def _is_merged(step: ProgramStep) -> bool:
    return _MERGED in step.value
