"""The targets that attacks build for by turns."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.attack.attack import Outcome
from tests.compiler.runnable_targets import runnable_targets
from tunefarm.compiler.target import Target


def drawn_target(seed: int) -> Target:
    """What the attempt of this seed builds for: all that this CPU can run come equally often."""
    return random.Random(f"target of {seed}").choice(runnable_targets())


def with_target(outcome: Outcome, target: Target) -> Outcome:
    """What went wrong in what was built for that target, which it names."""
    return replace(outcome, detail=f"built for {target.cpu}\n{outcome.detail}")
