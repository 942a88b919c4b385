"""How often a run of a program calls each of its kernels."""

from __future__ import annotations

from tunefarm.compiler.kernels.kernel import KernelCall, KernelProgram, LoopBegin, LoopEnd

GUESSED_ROUNDS = 16
"""Of a loop whose end is computed at run time, which may have more rounds than that."""


def calls_in_run(program: KernelProgram) -> dict[str, int]:
    """Calls in one run by workload key, in order of first use.

    Those in a loop count as often as it has rounds, so that what is spent on a kernel fits what it
    is worth; where that is not known before the run, as often as `GUESSED_ROUNDS` says.
    """
    found: dict[str, int] = {}
    ends = {call.loop: call for call in program.calls if isinstance(call, LoopEnd)}
    rounds = [1]
    for call in program.calls:
        if isinstance(call, LoopBegin):
            is_known = not (call.limit or call.first or ends[call.loop].again)
            own = call.most if is_known else min(call.most, GUESSED_ROUNDS)
            rounds.append(rounds[-1] * own)
        elif isinstance(call, LoopEnd):
            rounds.pop()
        elif isinstance(call, KernelCall):
            found[call.key] = found.get(call.key, 0) + rounds[-1]
    return found
