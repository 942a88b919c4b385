"""Drawn models with dynamic shapes, compiled, against onnxruntime.

A model is built once for the bounds of its symbols and run at five sizes: the greatest, the least,
and three between. All memory between kernels is NaN before the first pass of runs; the second goes
from larger to smaller sizes, so that what larger runs left lies in the padding of smaller ones.
By turns models are built for lesser CPUs, for two threads, and for values of a symbol; of some the
same model built for one fixed size must agree as well, and it has to where onnxruntime refuses a
model.

    python -m tests.attack sized --attempts 300 --seconds 7200
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tests.attack.attack import Attack, Outcome
from tests.attack.drawn_model import Array, run_session
from tests.attack.forked import End, Forked
from tests.attack.graphs import NODES, NUDGE, difference, smaller
from tests.attack.pickled import Made, made_in_fork
from tests.attack.sized_drawing import SizedDrawing, SizedDrawn
from tests.attack.sized_kinds import add_node
from tests.attack.targets import drawn_target, with_target
from tunefarm import compiler
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.extents import Shapes

SECONDS = 120.0
SAME, REFUSED, WRONG, CRASH = "same", "refused", "wrong", "crash"
NO_REFERENCE, CONDITION = "onnxruntime refuses", "ill-conditioned"
REWRITTEN, UNLIKE_FIXED = "same as onnxruntime unoptimised", "unlike the model of fixed sizes"
REFERENCE = "same as onnx's reference"  # of tensors without elements onnxruntime makes others
BY_CHANCE = "fits by chance"
_BY_CHANCE = re.compile("is 1,? and |must be equal(, as|:) node")
"""What is refused at run time: sizes that have to be equal, of which one that is 1 broadcasts."""
POISON = 0xFF  # of every byte: NaN, -1

Calls = list[list[Array]]


class Sized(Attack):
    """Draws a model with symbols and asks both at each of its sizes."""

    name: ClassVar[str] = "sized"
    share: ClassVar[float] = 3.0

    def __init__(self, folder: Path) -> None:
        """Builds a model, so that forks have imported and set up already what that needs."""
        super().__init__(folder)
        self._run_ours(draw(0), 0)

    def attempt(self, seed: int) -> Outcome:
        """Build the model of this seed, and compare it with onnxruntime at each of its sizes."""
        drawn = self._draw(seed)
        if isinstance(drawn, Outcome):
            return drawn
        outcome = self._ask(drawn, seed)
        return with_target(outcome, self.target_of(seed)) if outcome.broke else outcome

    def minimise(self, seed: int, outcome: Outcome) -> str:
        """Cut values into inputs, and drop outputs, as long as the same goes wrong."""
        drawn = self._draw(seed)
        if isinstance(drawn, Outcome):
            return ""
        return printed(smaller(drawn, lambda other: self._ask(other, seed).label == outcome.label))

    def _draw(self, seed: int) -> SizedDrawn | Outcome:
        """In a fork: onnxruntime runs each node of it, and may crash."""
        drawn = self._made(lambda: draw(seed))
        if isinstance(drawn, Forked):
            return Outcome(f"onnxruntime: {drawn.end}", detail=drawn.text)
        return drawn

    def _ask(self, drawn: SizedDrawn, seed: int) -> Outcome:
        model = drawn.proto()
        theirs = self._made(lambda: [run_session(model, drawn.calls())])
        ours = self._made(lambda: self._run_ours(drawn, seed))
        if not isinstance(ours, list):
            if ours.end is End.RETURNED:
                by_chance = _BY_CHANCE.search(ours.text) is not None
                return Outcome(BY_CHANCE if by_chance else REFUSED, not by_chance, ours.text)
            return Outcome(CRASH, broke=True, detail=f"{ours.end}: {ours.text}")
        if not isinstance(theirs, list) or seed % 6 == 0:
            unlike = self._unlike_fixed(drawn, ours, seed)
            if unlike:
                return Outcome(UNLIKE_FIXED, broke=True, detail=unlike)
        if not isinstance(theirs, list):
            return Outcome(NO_REFERENCE, detail=theirs.text)
        wrong = first_difference(drawn, ours, theirs[0])
        if not wrong:
            return Outcome(SAME)
        calls = drawn.calls()
        plain = self._made(lambda: [run_session(model, calls, optimised=False)])
        if isinstance(plain, list) and not first_difference(drawn, ours, plain[0]):
            return Outcome(REWRITTEN)
        second = self._made(lambda: [_reference(model, calls)])
        if isinstance(second, list) and not first_difference(drawn, ours, second[0]):
            return Outcome(REFERENCE, detail=wrong)
        nudged = self._made(lambda: [run_session(model, _nudged(drawn))])
        if isinstance(nudged, list) and first_difference(drawn, nudged, theirs[0], 0.1):
            return Outcome(CONDITION, detail=wrong)
        return Outcome(WRONG, broke=True, detail=wrong)

    def _unlike_fixed(self, drawn: SizedDrawn, ours: Sequence[Calls], seed: int) -> str:
        """What differs where the model is built for one of its sizes alone, "" if nothing does."""
        sample = seed // 6 % len(drawn.samples)
        one = at_sample(drawn, sample)
        if any(0 in array.shape for array in one.calls()[0].values()):
            return ""  # an extent of 0 is none that a build can be for
        fixed = self._made(lambda: self._run_ours(one, seed))
        if not isinstance(fixed, list):
            return f"at {drawn.sizes[sample]}: {fixed.end}: {fixed.text}"
        found = difference(one, ours[0][sample], fixed[0][0], 0.1)
        return found and f"at {drawn.sizes[sample]}: {found}"

    def _run_ours(self, drawn: SizedDrawn, seed: int) -> list[Calls]:
        """The outputs of each sample, twice: in poisoned memory, and after larger runs."""
        path = self.folder / "drawn.onnx"
        onnx.save(drawn.proto(), path)
        executable = self.built(path, drawn.shapes(), seed)
        return [_poisoned(executable, drawn), _shrinking(executable, drawn)]

    def built(self, path: Path, shapes: Shapes, seed: int) -> Executable:
        """What a model of these shapes is built to for this seed."""
        threads = 2 if seed % 5 == 0 else 1
        return compiler.build(path, target=self.target_of(seed), threads=threads, shapes=shapes)

    def target_of(self, seed: int) -> Target:
        """What the model of this seed is built for."""
        return drawn_target(seed)

    def _made(self, make: Callable[[], Made]) -> Made | Forked:
        return made_in_fork(make, self.folder / "made.pickle", seconds=SECONDS)


def draw(seed: int) -> SizedDrawn:
    """The model of this seed."""
    drawing = SizedDrawing.of(random.Random(seed))
    wanted = drawing.rng.randint(*NODES)
    while len(drawing.nodes) < wanted:
        add_node(drawing)
    return drawing.finished()


def at_sample(drawn: SizedDrawn, sample: int) -> SizedDrawn:
    """The model with the sizes of one sample alone, which are no symbols then."""
    values = drawn.samples[sample]
    return replace(
        drawn, values=values, symbols=(), sizes=(drawn.sizes[sample],), samples=(values,)
    )


def _reference(model: onnx.ModelProto, calls: Sequence[Mapping[str, Array]]) -> Calls:
    """What onnx's own evaluator makes of a model, for a second opinion."""
    evaluator = ReferenceEvaluator(model)
    return [[np.asarray(value) for value in evaluator.run(None, dict(call))] for call in calls]


def _poisoned(executable: Executable, drawn: SizedDrawn) -> Calls:
    """Each run in a frame of its own, whose memory holds nothing but NaN."""
    found: Calls = []
    for call in drawn.calls():
        frame = executable.new_frame()
        frame.arena.fill(POISON)
        found.append([np.asarray(a) for a in executable.run_in(frame, call).values()])
    return found


def _shrinking(executable: Executable, drawn: SizedDrawn) -> Calls:
    """All runs in one frame, those of more elements first."""
    calls = drawn.calls()
    order = sorted(range(len(calls)), key=lambda n: -sum(a.size for a in calls[n].values()))
    outputs = {number: executable.run(calls[number]) for number in order}
    return [[np.asarray(a) for a in outputs[number].values()] for number in range(len(calls))]


def first_difference(
    drawn: SizedDrawn, ours: Sequence[Calls], theirs: Calls, part: float = 1.0
) -> str:
    """The first output of any pass and sample that differs, "" if none does."""
    for passed in ours:
        for sizes, our, their in zip(drawn.sizes, passed, theirs, strict=True):
            found = difference(drawn, our, their, part)
            if found:
                return f"at {sizes}: {found}"
    return ""


def _nudged(drawn: SizedDrawn) -> list[dict[str, Array]]:
    """The arguments with other rounding errors, except for those that have none."""
    rng = np.random.default_rng(0)
    return [
        {
            name: value
            if name in drawn.exact
            else (value * (1 + NUDGE * rng.choice((-1, 1), value.shape))).astype(value.dtype)
            for name, value in call.items()
        }
        for call in drawn.calls()
    ]


def printed(drawn: SizedDrawn) -> str:
    """The model's text; bounds and sizes below."""
    text = str(onnx.printer.to_text(drawn.proto()))[:8000]
    lines = [text, f"bounds {drawn.shapes()}", *(f"sizes {sizes}" for sizes in drawn.sizes)]
    return "\n".join(lines)
