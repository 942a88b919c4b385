"""Kernels of a model, for each target -> tuning tasks, with what the database knows of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.calls_in_run import calls_in_run
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelProgram
from tunefarm.compiler.kernels.kernel_sizes import kernel_at
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.runtime.spec.kernel_report import node_names
from tunefarm.compiler.schedule.cycles import cycles
from tunefarm.compiler.schedule.space import Candidate, ScheduleSpace
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.configs.settings import Settings
from tunefarm.db.store import Store
from tunefarm.tuner.from_settings import limits_of
from tunefarm.tuner.model.cost_model import CostModel, TrainingData
from tunefarm.tuner.model.features import Correction, FeatureExtractor
from tunefarm.tuner.model.history import (
    JOB_ROWS,
    Known,
    PastKernel,
    background,
    bests,
    bests_elsewhere,
    nearest_bests,
    read_history,
)
from tunefarm.tuner.records.size_ranges import SizePoint, points_of, searched_points
from tunefarm.tuner.records.trials import task_key
from tunefarm.tuner.search.budget import TaskProgress
from tunefarm.tuner.search.strategy import Score, SearchProblem, make_strategy
from tunefarm.tuner.search.tasks import TaskSearch, TuningTask, plan


def distinct_kernels(program: KernelProgram) -> dict[str, tuple[FusedKernel, int]]:
    """Each distinct kernel and how often the model calls it, by workload key."""
    counts = calls_in_run(program)
    return {key: (calls[0].kernel, counts[key]) for key, calls in program.kernel_calls().items()}


def nodes_of(program: KernelProgram) -> dict[str, str]:
    """The model's nodes that each distinct kernel computes, by workload key: `conv1 + relu1`."""
    found = program.kernel_calls().items()
    return {key: node_names(calls[0].sources, len(calls) - 1) for key, calls in found}


def kernels_at(
    kernels: Mapping[str, tuple[FusedKernel, int]], points: Sequence[SizePoint]
) -> tuple[dict[str, tuple[FusedKernel, int]], dict[str, str]]:
    """The kernels as they are tuned for each of the points, and what sizes those are by key.

    A kernel that does not depend on a point's sizes, or for which they are the maximum, is itself.
    """
    found, names = dict(kernels), dict[str, str]()
    for point in points:
        for kernel, calls in kernels.values():
            sized = kernel_at(kernel, point.sizes)
            key = workload_key(sized)
            if key not in found:
                found[key], names[key] = (sized, calls), str(point)
    return found, names


@dataclass(frozen=True, slots=True)
class TaskSource:
    """The kernels of a model for one target, and what is known of them beforehand.

    `kernels` are by workload key, each with the number of its calls; of those that are tuned for
    other sizes than the maximum, `sizes` says these (`kernels_at`). `nodes` names the model's nodes
    that a kernel computes, where they are known. After the default schedule,
    first tried are the best ones that `elsewhere` has of the same kernel (by workload: for another
    number of threads, say) and those of the nearest relatives in `past`, kernels tuned before, for
    this target or others.
    """

    target: Target
    kernels: Mapping[str, tuple[FusedKernel, int]]
    past: Sequence[PastKernel] = ()
    elsewhere: Mapping[str, Sequence[Known]] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)


def make_tasks(
    sources: Sequence[TaskSource],
    settings: Settings,
    model: CostModel,
    correction: Correction | None = None,
) -> list[TuningTask]:
    """A task per distinct kernel of each target; all share one cost model, and what corrects the
    analytic estimate.

    Of several targets each task tells its own.
    """
    tasks = []
    for source in sources:
        name = source.target.cpu if len(sources) > 1 else ""
        tasks += _tasks_of(source, settings, model, correction, name)
    return tasks


def _tasks_of(
    source: TaskSource,
    settings: Settings,
    model: CostModel,
    correction: Correction | None,
    name: str,
) -> list[TuningTask]:
    """The tasks of one target, which is called `name` where there are several."""
    search, threads, target = settings.search, settings.compile.threads, source.target
    known = bests(source.past, target)
    tasks = []
    for key, (kernel, occurrences) in source.kernels.items():
        space = schedule_space(kernel, target, threads, settings.compile.numerics)
        extract = FeatureExtractor(space, kernel, target, threads, correction)
        problem = SearchProblem(
            space,
            _score(model, extract),
            search.seed ^ int(key[:8], 16),
            exploration=search.exploration,
            pool=search.cost_model.pool,
            features=extract.of_rows,
        )
        default = plan(space, space.default())
        own = nearest_bests(kernel, space, source.elsewhere.get(key, ()))
        tasks.append(
            TuningTask(
                kernel=kernel,
                kernel_json=kernel_to_json(kernel),
                key=task_key(key, target, threads, settings.compile.numerics),
                space=space,
                extract=extract,
                search=TaskSearch(
                    space,
                    make_strategy(search.sampler, problem),
                    first=[default.candidate, *own, *nearest_bests(kernel, space, known)],
                ),
                progress=TaskProgress(
                    occurrences, cycles=_cycles(space, default.candidate, target)
                ),
                default=default,
                target=name,
                sizes=source.sizes.get(key, ""),
                nodes=source.nodes.get(key, ""),
            )
        )
    return tasks


def _cycles(space: ScheduleSpace, candidate: Candidate, target: Target) -> float:
    """Estimated, of a call with the candidate; infinity for loops whose cycles nothing counts."""
    sketch = space.sketch(candidate.sketch)
    if sketch.shape is None:
        return math.inf
    shape, _ = sketch.shape_of([(value,) for value in space.choices(candidate).values()])
    return max(1.0, float(cycles(shape, target)[0]))


def _score(model: CostModel, extract: FeatureExtractor) -> Score:
    return lambda rows: model.predict(extract.of_rows(rows))


def task_source(
    store: Store,
    graph: Graph,
    numerics: Numerics,
    target: Target,
    settings: Settings,
) -> TaskSource:
    """The kernels that a model has for a target, and what the database knows of them.

    Of a model with a range of sizes each kernel is there for a few of them.
    """
    limits = limits_of(settings)
    threads = settings.compile.threads
    program = kernels_of(graph, target, limits=limits, numerics=numerics, threads=threads)
    points = searched_points(points_of(graph.signature))
    kernels, sizes = kernels_at(distinct_kernels(program), points)
    like = task_key("", target, threads, settings.compile.numerics)
    past = read_history(store, like, target, without=kernels, rows=JOB_ROWS, everywhere=True)
    found = {key: kernel for key, (kernel, _) in kernels.items()}
    known = bests_elsewhere(store, found, like)
    return TaskSource(target, kernels, past, known, sizes, nodes_of(program))


def known_of_others(
    sources: Sequence[TaskSource], settings: Settings, correction: Correction | None = None
) -> list[TrainingData]:
    """What is known of other kernels, and of these for other targets, for the cost model to start
    from."""
    own = {(source.target.key, key) for source in sources for key in source.kernels}
    past = {
        (item.target.key, workload_key(item.kernel)): item
        for source in sources
        for item in source.past
    }
    others = [item for place, item in past.items() if place not in own]
    return background(others, settings.compile.threads, correction)
