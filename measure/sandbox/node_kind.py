"""Which of a job's targets a node stands for: what its CPU says, by one rule for all nodes.

Several of the targets may run on a CPU, but what is fast there says little of another one: each
node measures for one target, so that no record is of the wrong kind.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.runtime.machine.check_target import can_run
from tunefarm.compiler.target import Target, host_target
from tunefarm.measure.sandbox.by_name import by_name

LEVELS = ("x86-64", "generic")
"""What the names of targets begin with that stand for what many CPUs have in common."""


def this_node(probe: str = "") -> Target:
    """This machine as a target. `probe` is the path `module:function` of what tells it, in tests
    that simulate other machines; "": the CPU."""
    if not probe:
        return host_target()
    text: Target = by_name(probe)()
    return text


def kind_of(node: Target, wanted: Sequence[Target]) -> Target | None:
    """The one of the `wanted` targets that a node stands for, the best ones first; None if none.

    That is the target that the node is itself; else one of the same CPU that it can run, because a
    named target has not the very features; else the first level (`LEVELS`) that it has.
    """
    able = [target for target in wanted if can_run(target, node)]
    for target in able:
        if target.key == node.key:
            return target
    for target in able:
        if target.cpu == node.cpu:
            return target
    return next((target for target in able if target.cpu.startswith(LEVELS)), None)
