"""The workload key: what a tuning record is about, independent of model, process and weights."""

from __future__ import annotations

import hashlib
import json

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.serialize import kernel_to_json

KEY_DIGITS = 16


def workload_key(kernel: FusedKernel) -> str:
    """16 hex digits of the SHA-256 of the kernel's canonical JSON without its name.

    Shapes, element types, literals and structure count; the kernel's name and the contents of its
    inputs do not. Stage and axis names count because schedules refer to them.
    """
    value = kernel_to_json(kernel)
    del value["name"]
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]
