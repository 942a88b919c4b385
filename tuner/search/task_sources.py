"""What the tasks of a job are made from: a model's kernels for each target, and what is known."""

from __future__ import annotations

from collections.abc import Iterable

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.configs.settings import Settings
from tunefarm.db.store import Store
from tunefarm.tuner.from_settings import limits_of
from tunefarm.tuner.model.cost_model import TrainingData
from tunefarm.tuner.model.features import FeatureLayout
from tunefarm.tuner.model.history import JOB_ROWS, background, bests_elsewhere, read_history
from tunefarm.tuner.records.size_ranges import points_of, searched_points
from tunefarm.tuner.records.trials import task_key
from tunefarm.tuner.search.make_tasks import (
    TaskSource,
    distinct_kernels,
    kernels_at,
    nodes_of,
)


def task_source(
    store: Store,
    graph: Graph,
    numerics: Numerics,
    target: Target,
    settings: Settings,
    plan: GraphPlan = DEFAULT_PLAN,
) -> TaskSource:
    """The kernels that a model has for a target under a plan, and what the database knows of them.

    Of a model with a range of sizes each kernel is there for a few of them.
    """
    limits = limits_of(settings)
    program = kernels_of(graph, target, limits=limits, numerics=numerics, plan=plan)
    points = [] if graph.signature is None else searched_points(points_of(graph.signature))
    kernels, sizes = kernels_at(distinct_kernels(program), points)
    like = task_key("", target, settings.compile.threads, settings.compile.numerics)
    past = read_history(store, like, target, without=kernels, rows=JOB_ROWS)
    found = {key: kernel for key, (kernel, _) in kernels.items()}
    known = bests_elsewhere(store, found, like)
    return TaskSource(target, kernels, past, known, sizes, nodes_of(program))


def known_of_others(
    sources: Iterable[TaskSource], layout: FeatureLayout, settings: Settings
) -> list[TrainingData]:
    """What is known of other kernels, for the cost model to start from."""
    found: list[TrainingData] = []
    for source in sources:
        like = task_key("", source.target, settings.compile.threads, settings.compile.numerics)
        found += background(source.past, layout, like)
    return found
