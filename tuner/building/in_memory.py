"""Builds for Python: loaded at once, untuned where nobody named a database and there is none.

A warning says that kernels are not tuned: where none is, and where records were left.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

from tunefarm.compiler.errors import UntunedWarning
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.kernel_report import TUNED
from tunefarm.configs.settings import has_database
from tunefarm.tuner.building.flow import build_loaded
from tunefarm.tuner.building.request import BuildRequest


def build_in_memory(request: BuildRequest, *, stacklevel: int) -> Executable:
    """Build what is asked for and load it; an `UntunedWarning` if no kernel is tuned, or some are
    not though the database has records that might do.

    `stacklevel` is as in `warnings.warn`, counted from the caller of this function. Raises
    TunefarmError.
    """
    executable, note = build_and_note(request)
    if note:
        warnings.warn(note, UntunedWarning, stacklevel=stacklevel + 1)
    return executable


def build_and_note(request: BuildRequest) -> tuple[Executable, str]:
    """What `build_in_memory` builds, and the text of its warning, "" for none."""
    url = request.settings.database.url
    without = not has_database(request.settings)
    without_any = without and not request.asks_only_shipped
    executable, result = build_loaded(replace(request, untuned=without_any))
    sources = [kernel.schedule_source for kernel in executable.kernels]
    left = "; ".join(dict.fromkeys(map(str, result.unapplied)))
    if sources and TUNED not in sources:
        reason = f"there is no database {url}" if without else "no record of the database applies"
        reason += f" ({left})" if left else ""
        text = f"is built untuned: {reason}; tunefarm.tune measures its kernels"
    elif left and (untuned := sum(source != TUNED for source in sources)):
        text = f"is built with {untuned} of {len(sources)} kernels untuned: {left}"
    else:
        return executable, ""
    return executable, f"{request.model} {text}"
