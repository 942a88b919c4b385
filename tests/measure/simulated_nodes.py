"""Nodes of several kinds on one machine: what they say that they are comes from the environment."""

from __future__ import annotations

import os
from pathlib import Path

from tests.targets import target_named
from tunefarm.compiler.errors import LoweringError
from tunefarm.compiler.target import Target, host_target
from tunefarm.measure.measurement import MeasureRequest
from tunefarm.measure.worker.build_candidate import BuiltCandidate, compile_candidate

KIND = "SIMULATED_KIND"
"""The variable of a node that names its target; this machine where it is not set. A path is that of
a file, which holds the name."""
PROBE = "tests.measure.simulated_nodes:simulated_node"
COMPILE_HERE = "tests.measure.simulated_nodes:compile_here"


def simulated_node() -> Target:
    """What this node says that it is."""
    name = os.environ.get(KIND, "")
    if name.startswith("/"):
        name = Path(name).read_text()
    return target_named(name) if name else host_target()


def compile_here(request: MeasureRequest, target: Target) -> BuiltCandidate:
    """The compiler's own build step, on nodes of the request's kind alone."""
    node = simulated_node()
    if (request.target, target.key) != (node.key, node.key):
        raise LoweringError(f"{request.target} is built for {target.key} on a {node.key}")
    return compile_candidate(request, target)
