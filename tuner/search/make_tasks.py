"""Kernels of a model -> tuning tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.kernels.kernel import FusedKernel, KernelProgram
from compiler.kernels.serialize import kernel_to_json
from compiler.schedule.spaces import schedule_space
from compiler.target import Target
from configs.settings import Settings
from tuner.model.cost_model import CostModel
from tuner.model.features import FeatureExtractor, FeatureLayout
from tuner.model.history import PastKernel, bests
from tuner.model.relatives import Known, nearest_bests
from tuner.records.trials import task_key
from tuner.search.budget import TaskProgress
from tuner.search.strategy import Score, SearchProblem, make_strategy
from tuner.search.task_search import TaskSearch
from tuner.search.tasks import TuningTask, plan


def distinct_kernels(program: KernelProgram) -> dict[str, tuple[FusedKernel, int]]:
    """Each distinct kernel and how often the model calls it, by workload key."""
    return {key: (calls[0].kernel, len(calls)) for key, calls in program.kernel_calls().items()}


def make_tasks(
    kernels: Mapping[str, tuple[FusedKernel, int]],
    target: Target,
    settings: Settings,
    model: CostModel,
    past: Sequence[PastKernel] = (),
    elsewhere: Mapping[str, Sequence[Known]] | None = None,
) -> list[TuningTask]:
    """A task per distinct kernel; all share one cost model and one layout of features.

    After the default schedule, first tried are the best ones that `elsewhere` has of the same
    kernel (by workload: for another number of threads, say) and those of the nearest relatives in
    `past`, kernels tuned before.
    """
    search, threads = settings.search, settings.compile.threads
    spaces = {
        key: schedule_space(kernel, target, threads, settings.compile.numerics)
        for key, (kernel, _) in kernels.items()
    }
    layout = FeatureLayout.of([*spaces.values(), *(item.space for item in past)])
    known = bests(past)
    tasks = []
    for key, (kernel, occurrences) in kernels.items():
        space = spaces[key]
        extract = FeatureExtractor(space, kernel, target, layout, threads)
        problem = SearchProblem(
            space,
            _score(model, extract),
            search.seed ^ int(key[:8], 16),
            exploration=search.exploration,
            pool=search.cost_model.pool,
            features=extract.of_rows,
        )
        default = plan(space, space.default())
        own = nearest_bests(kernel, space, (elsewhere or {}).get(key, ()))
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
                progress=TaskProgress(occurrences),
                default=default,
            )
        )
    return tasks


def _score(model: CostModel, extract: FeatureExtractor) -> Score:
    return lambda rows: model.predict(extract.of_rows(rows))
