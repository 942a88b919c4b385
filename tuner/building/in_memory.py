"""Builds for Python: loaded at once, untuned where nobody named a database and there is none."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

from tunefarm.compiler.errors import UntunedWarning
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.kernel_report import TUNED
from tunefarm.configs.settings import names_database
from tunefarm.tuner.building.flow import build_executable
from tunefarm.tuner.building.request import BuildRequest


def build_in_memory(request: BuildRequest, *, stacklevel: int) -> Executable:
    """Build what is asked for and load it; an `UntunedWarning` if no kernel is tuned.

    `stacklevel` is as in `warnings.warn`, counted from the caller of this function. Raises
    TunefarmError.
    """
    settings = request.settings
    url = settings.database.url
    without = not names_database(settings) and not Path(url).exists()
    executable = build_executable(replace(request, untuned=without))
    sources = {kernel.schedule_source for kernel in executable.kernels}
    if sources and TUNED not in sources:
        reason = f"there is no database {url}" if without else "no record of the database applies"
        warnings.warn(
            f"{request.model} is built untuned: {reason}; tunefarm.tune measures its kernels",
            UntunedWarning,
            stacklevel=stacklevel + 1,
        )
    return executable
