"""Drawn quantised models, built and run, must give what ONNX's reference evaluator gives.

To the bit, or else but for numbers in the middle of two integers, which are counted apart: see
`DrawnModel.difference`. Two thousand of them:

    python -m tests.attack quantised --attempts 2000 --seconds 7200
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx

from tests.attack.attack import Attack, Outcome
from tests.attack.drawn_quantised import draw
from tests.attack.forked import End, run_forked
from tests.attack.targets import drawn_target, with_target
from tunefarm import compiler

SECONDS = 60.0
SAME, TIES, WRONG, CRASH = "bit-equal", "equal but for ties", "wrong", "crash"


class Quantised(Attack):
    """Draws a model of integers, builds and runs it."""

    name: ClassVar[str] = "quantised"

    def __init__(self, folder: Path) -> None:
        """Builds a model, so that forks have imported and set up already what that needs."""
        super().__init__(folder)
        self._outcome(0)

    def attempt(self, seed: int) -> Outcome:
        """Build and run the model of this seed, in a fork, and compare each element."""
        outcome = self._ask(seed)
        return with_target(outcome, drawn_target(seed)) if outcome.broke else outcome

    def _ask(self, seed: int) -> Outcome:
        ended = run_forked(lambda: self._outcome(seed), seconds=SECONDS)
        if ended.end is not End.RETURNED:
            return Outcome(CRASH, broke=True, detail=f"{ended.end}: {ended.text}")
        if ended.text in (SAME, TIES):
            return Outcome(ended.text)
        return Outcome(WRONG, broke=True, detail=ended.text)

    def minimise(self, seed: int, outcome: Outcome) -> str:
        """The model's text: it has few nodes from the start."""
        return onnx.printer.to_text(draw(seed).model)[:4000]

    def _outcome(self, seed: int) -> str:
        """What the two differ in, or the label of an attempt in which they do not."""
        drawn, path = draw(seed), self.folder / "drawn.onnx"
        onnx.save(drawn.model, path)
        threads = 2 if seed % 7 == 0 else 1
        built = compiler.build(path, target=drawn_target(seed), threads=threads)
        found = np.asarray(built.run(drawn.inputs)["y"])
        return drawn.difference(found) or (SAME if drawn.is_bit_equal(found) else TIES)
