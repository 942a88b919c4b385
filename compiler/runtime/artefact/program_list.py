"""The programs of an artifact: one model, for several CPUs or sizes of its inputs.

They stand in the order in which they are tried: those for the best CPU first, then those that were
built as fallbacks. Those for one CPU differ in the sizes that they are for.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.errors import ArtefactError, VerifyError
from tunefarm.compiler.runtime.machine.check_target import (
    can_run,
    check_target,
    lacking_features,
    platform_of,
)
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.runtime.spec.joined_signature import ports_of_program
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.dtypes import DType


def verify_programs(programs: Sequence[ExecutableSpec]) -> None:
    """Raise `VerifyError` unless the programs are of one model, in order, and each can be reached.

    All have the same inputs and outputs, but for their extents and the ranks of outputs; fallbacks
    follow the others; no two are for the same CPU and sizes.
    """
    problem = _problem(programs)
    if problem:
        raise VerifyError(f"executable {programs[0].name}: {problem}")


def _problem(programs: Sequence[ExecutableSpec]) -> str:
    kinds = [program.fallback for program in programs]
    if kinds != sorted(kinds):
        return "its programs are not in order"
    first = programs[0]
    for program in programs[1:]:
        if _ports(program) != _ports(first):
            return "its programs have not the same inputs and outputs"
        if program.structure != first.structure:
            return "its programs have not the same lists and optionals"
    for number, program in enumerate(programs):
        for other in programs[:number]:
            if _machine(other) != _machine(program):
                continue
            if not (other.guards and program.guards) or other.guards == program.guards:
                return f"two programs are for {program.target.cpu} and the same sizes"
    return ""


def _machine(program: ExecutableSpec) -> tuple[Target, bool]:
    """What the programs have in common of which one runs for its sizes."""
    return program.target, program.fallback


def _ports(program: ExecutableSpec) -> tuple[list[tuple[str, DType, int]], list[tuple[str, DType]]]:
    inputs, outputs = ports_of_program(program)
    ranked = [(port.name, port.dtype, len(port.shape)) for port in inputs]
    return ranked, [(port.name, port.dtype) for port in outputs]


def programs_here(
    programs: Sequence[ExecutableSpec], *, fallback: bool = False
) -> tuple[ExecutableSpec, ...]:
    """The programs for the first target that this machine can run, with `fallback` the last one.

    Raises `ArtefactError` if there is none, naming what each needs.
    """
    machines = list(dict.fromkeys(map(_machine, programs)))
    if fallback:
        machines = machines[-1:]
    chosen = next((machine for machine in machines if can_run(machine[0])), None)
    if chosen is None and len(machines) == 1:
        check_target(machines[0][0])
    if chosen is None:
        raise _refusal([target for target, _ in machines])
    return tuple(program for program in programs if _machine(program) == chosen)


def _refusal(targets: Sequence[Target]) -> ArtefactError:
    host = host_target()
    here = platform_of(host)

    def need(target: Target) -> str:
        if platform_of(target) != here:
            return f"that for {target.cpu} needs {platform_of(target)}"
        return f"that for {target.cpu} needs {lacking_features(target, host)}"

    needs = "; ".join(map(need, targets))
    return ArtefactError(
        f"the model has no program for this {host.cpu} ({here}), which lacks what they need: "
        f"{needs}",
        hint="build it with --fallback, again on this machine, or for an older target",
    )
