"""Calls on a node of a cluster that is of a wanted kind: what no request for a kernel can ask.

A whole model is timed so on a machine of the kind that it was built for. A Ray worker process
serves one call and ends; what it asks the node first is what its CPU is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tunefarm.compiler.errors import MeasureError, TunefarmError
from tunefarm.compiler.target import Target
from tunefarm.measure.sandbox.by_name import by_name
from tunefarm.measure.sandbox.node_kind import kind_of, this_node


def call_on_node(
    node: str,
    target: Target,
    wanted: Sequence[Target],
    probe: str,
    function: str,
    arguments: Sequence[object],
    seconds: float,
) -> object:
    """What a function (`module:name`) returns on a node, which must still be of the target's kind.

    Raises MeasureError when the node is of another kind, gone, or late, and for what the function
    raises.
    """
    task: Any = ray.remote(max_calls=1)(_called)  # what happens to its process happens to no other
    reference = task.options(
        num_cpus=0,
        max_retries=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    ).remote(target, tuple(wanted), probe, function, tuple(arguments))
    try:
        found: object = ray.get(reference, timeout=seconds)
    except GetTimeoutError as error:
        ray.cancel(reference, force=True)
        raise MeasureError(f"no answer of a {target.cpu} within {seconds:.0f} s") from error
    except RayTaskError as error:
        cause = error.cause
        reason = cause.message if isinstance(cause, TunefarmError) else repr(cause)
        raise MeasureError(f"on a {target.cpu}: {reason}") from error
    except RayError as error:
        last = str(error).strip().splitlines()[-1]
        raise MeasureError(f"a {target.cpu} did not answer: {last}") from error
    return found


def _called(
    target: Target,
    wanted: tuple[Target, ...],
    probe: str,
    function: str,
    arguments: tuple[object, ...],
) -> object:
    node = this_node(probe)
    if kind_of(node, wanted) != target:
        raise MeasureError(f"{node.cpu} is no node for {target.cpu}")
    return by_name(function)(*arguments)
