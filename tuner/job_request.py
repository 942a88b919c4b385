"""What a job is asked: a model, how it is to be tuned, who measures and who gets messages."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from tunefarm.compiler.target import Target
from tunefarm.compiler.types.extents import Shapes
from tunefarm.configs.settings import Settings
from tunefarm.measure.farm.runner import Runner
from tunefarm.tuner.building.model_file import ModelStamp
from tunefarm.tuner.calibration.options import PrecisionOptions
from tunefarm.tuner.records.job_command import JobCommand
from tunefarm.tuner.reports.progress import Progress
from tunefarm.tuner.search.measuring import runner_of
from tunefarm.tuner.search.monitor import Monitor

MakeRunner: TypeAlias = Callable[[Settings, Target, Callable[[str], None]], Runner]


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A model and the settings of its job; its minutes count from `started`, a moment of
    `time.monotonic`.

    `options` say how a low precision is chosen, `shapes` fix or bound symbolic dimensions.
    `command` is what was typed, None where nothing was; `monitor` tells others of the job. `stamp`
    is of the model's file as it was read, None before that.
    """

    model: str | os.PathLike[str]
    settings: Settings
    options: PrecisionOptions = field(default_factory=PrecisionOptions)
    shapes: Shapes | None = None
    progress: Progress = field(default_factory=Progress)
    make_runner: MakeRunner = runner_of
    started: float = field(default_factory=time.monotonic)
    command: JobCommand | None = None
    monitor: Monitor = field(default_factory=Monitor)
    stamp: ModelStamp | None = None
