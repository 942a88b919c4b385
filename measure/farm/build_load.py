"""A core that builds without end, to see what that does to its neighbours
(`tunefarm.measure.farm.overlap`).

python -m tunefarm.measure.farm.build_load PARENT CORE
"""

from __future__ import annotations

import os
import random
import sys

from tunefarm.compiler.llvm import compile_kernel
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.measure.farm.noise import fixed_kernel
from tunefarm.measure.sandbox.limits import die_with


def compile_for_ever(parent: int, core: int) -> None:
    """Compile on `core` until `parent` dies; prints a line when it begins."""
    die_with(parent)
    os.sched_setaffinity(0, [core])
    kernel, target = fixed_kernel(), host_target()
    space = schedule_space(kernel, target)
    rng = random.Random(0)
    while True:
        compile_kernel(kernel, space.schedule(space.sample(rng)), target)
        if not sys.stdout.closed:
            print("compiling", flush=True)
            sys.stdout.close()


if __name__ == "__main__":
    compile_for_ever(int(sys.argv[1]), int(sys.argv[2]))
