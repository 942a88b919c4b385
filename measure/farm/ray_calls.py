"""Calls on a node, by a worker that says first which tunefarm it has.

On one of a wanted kind a whole model is timed so on a machine of the kind that it was built for,
what no request for a kernel can ask. A Ray worker process serves one such call and ends; what it
asks the node first is what its CPU is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tunefarm.compiler.errors import MeasureError, TunefarmError
from tunefarm.compiler.target import Target
from tunefarm.measure.sandbox import versions
from tunefarm.measure.sandbox.by_name import by_name
from tunefarm.measure.sandbox.node_kind import kind_of, this_node
from tunefarm.measure.sandbox.versions import Installation, call_if_alike, installation


def begin_call(
    function: str, arguments: Sequence[object], node: str | None = None, **options: object
) -> Any:
    """Have a worker, on this node or on any, call a function (`module:name`) of ours.

    A reference that `opened` takes what comes of. What is called is carried over by value, so that
    a worker that has another tunefarm, or none, says so.
    """
    if node is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
    pickle: Any = cloudpickle
    pickle.register_pickle_by_value(versions)
    try:
        remote: Any = ray.remote
        task = remote(num_cpus=0, **options)(call_if_alike)
        return task.remote(installation().versions, function, tuple(arguments))
    finally:
        pickle.unregister_pickle_by_value(versions)


def opened(answer: tuple[str, dict[str, str], object]) -> tuple[Installation, object]:
    """What a worker has, and what it has returned if it has what this process has."""
    folder, found, value = answer
    return Installation(folder, found), value


def expect_same(there: Installation) -> None:
    """Raise MeasureError unless a worker has what this process has."""
    if not there.folder:
        raise MeasureError(
            f"Ray's workers cannot import tunefarm; this process imports {installation().folder}",
            hint="install it for the Python of the workers: python -m pip install tunefarm",
        )
    if difference := installation().difference(there):
        raise MeasureError(
            f"Ray's workers would measure another tunefarm than this process: {difference}",
            hint="install one version everywhere, and keep the other off the workers' path",
        )


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
    reference = begin_call(
        f"{__name__}:called",
        (target, tuple(wanted), probe, function, tuple(arguments)),
        node,
        max_calls=1,  # what happens to its process happens to no other
        max_retries=0,
    )
    try:
        there, found = opened(ray.get(reference, timeout=seconds))
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
    expect_same(there)
    return found


def called(
    target: Target,
    wanted: tuple[Target, ...],
    probe: str,
    function: str,
    arguments: tuple[object, ...],
) -> object:
    """What a function returns here, if this node stands for the target."""
    node = this_node(probe)
    if kind_of(node, wanted) != target:
        raise MeasureError(f"{node.cpu} is no node for {target.cpu}")
    return by_name(function)(*arguments)
