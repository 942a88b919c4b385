"""Drawn ONNX models, built and run, must give what onnxruntime gives."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
import onnx
from onnx import printer

from tests.attack.attack import Attack, Outcome
from tests.attack.drawn_model import (
    Array,
    Drawing,
    Drawn,
    names_read,
    run_onnxruntime,
)
from tests.attack.drawn_operators import add_node
from tests.attack.forked import End, Forked
from tests.attack.pickled import Made, made_in_fork
from tests.attack.targets import drawn_target, with_target
from tunefarm import compiler

AnyDrawn = TypeVar("AnyDrawn", bound=Drawn)

NODES = (3, 11)
TOLERANCE = {"float16": 2e-3, "float32": 2e-4, "float64": 1e-9}
"""Of the largest magnitude of a value; a float64 may have come from a float32."""
SECONDS = 60.0
NUDGE = 1e-6  # relative, of inputs: what a well-conditioned model answers with as little

SAME, REFUSED, WRONG, CRASH = "same", "refused", "wrong", "crash"
NO_REFERENCE, CONDITION = "onnxruntime refuses", "ill-conditioned"
REWRITTEN = "same as onnxruntime unoptimised"  # it makes one of two pairs of quantisations, say


class Graphs(Attack):
    """Draws a model and asks both."""

    name: ClassVar[str] = "graphs"
    share: ClassVar[float] = 3.0

    def __init__(self, folder: Path) -> None:
        """Builds a model, so that forks have imported and set up already what that needs."""
        super().__init__(folder)
        path = folder / ".first.onnx"
        drawn = self.drawn(0)
        onnx.save(drawn.proto(), path)
        self.run(path, {name: drawn.values[name] for name in drawn.inputs}, 1)

    @classmethod
    def drawn(cls, seed: int) -> Drawn:
        """The model of this seed."""
        return draw(seed)

    @classmethod
    def run(cls, path: Path, inputs: Mapping[str, Array], seed: int) -> list[Array]:
        """The outputs of what is built of a model, as it is built for this seed."""
        executable = compiler.build(path, target=drawn_target(seed), threads=threads_of(seed))
        return list(executable.run(dict(inputs)).values())

    def attempt(self, seed: int) -> Outcome:
        """Build and run the model of this seed, and compare it with onnxruntime."""
        drawn = self._draw(seed)
        if isinstance(drawn, Outcome):
            return drawn
        outcome = self._ask(drawn, seed)
        return with_target(outcome, drawn_target(seed)) if outcome.broke else outcome

    def minimise(self, seed: int, outcome: Outcome) -> str:
        """Cut values into inputs, and drop outputs, as long as the same goes wrong."""
        drawn = self._draw(seed)
        if isinstance(drawn, Outcome):
            return ""
        return printed(smaller(drawn, lambda other: self._ask(other, seed).label == outcome.label))

    def _draw(self, seed: int) -> Drawn | Outcome:
        """In a fork: onnxruntime runs each node of it, and may crash."""
        drawn = self._made(lambda: self.drawn(seed))
        if isinstance(drawn, Forked):
            return Outcome(f"onnxruntime: {drawn.end}", detail=drawn.text)
        return drawn

    def _ask(self, drawn: Drawn, seed: int) -> Outcome:
        model = drawn.proto()
        onnx.checker.check_model(model)
        path = self.folder / "drawn.onnx"
        onnx.save(model, path)
        inputs = {name: drawn.values[name] for name in drawn.inputs}
        theirs = self._made(lambda: run_onnxruntime(model, inputs))
        if not isinstance(theirs, list):
            return Outcome(NO_REFERENCE, detail=theirs.text)
        ours = self._made(lambda: self.run(path, inputs, seed))
        if not isinstance(ours, list):
            if ours.end is End.RETURNED:
                return Outcome(REFUSED, broke=True, detail=ours.text)
            return Outcome(CRASH, broke=True, detail=f"{ours.end}: {ours.text}")
        wrong = difference(drawn, ours, theirs)
        if not wrong:
            return Outcome(SAME)
        plain = self._made(lambda: run_onnxruntime(model, inputs, optimised=False))
        if isinstance(plain, list) and not difference(drawn, ours, plain):
            return Outcome(REWRITTEN)
        nudged = self._made(lambda: run_onnxruntime(model, _nudged(drawn)))
        if isinstance(nudged, list) and difference(drawn, nudged, theirs, 0.1):
            return Outcome(CONDITION, detail=wrong)
        return Outcome(WRONG, broke=True, detail=wrong)

    def _made(self, make: Callable[[], Made]) -> Made | Forked:
        return made_in_fork(make, self.folder / "made.pickle", seconds=SECONDS)


def threads_of(seed: int) -> int:
    """Of the build of a seed's model."""
    return 2 if seed % 5 == 0 else 1


def draw(seed: int) -> Drawn:
    """The model of this seed."""
    drawing = Drawing(random.Random(seed))
    wanted = drawing.rng.randint(*NODES)
    while len(drawing.nodes) < wanted:
        add_node(drawing)
    return drawing.finished()


def _nudged(drawn: Drawn) -> dict[str, Array]:
    """The inputs with other rounding errors, except for those that have none."""
    rng = np.random.default_rng(0)
    return {
        name: value
        if name in drawn.exact
        else (value * (1 + NUDGE * rng.choice((-1, 1), value.shape))).astype(value.dtype)
        for name, value in ((name, drawn.values[name]) for name in drawn.inputs)
    }


def difference(drawn: Drawn, ours: list[Array], theirs: list[Array], part: float = 1.0) -> str:
    """The first output that differs by more than that part of the tolerance, "" if none does."""
    for name, our, their in zip(drawn.outputs, ours, theirs, strict=True):
        if (our.dtype, our.shape) != (their.dtype, their.shape):
            return f"{name}: {our.dtype}{our.shape} instead of {their.dtype}{their.shape}"
        if their.dtype.kind != "f":
            unequal = our != their
        else:
            wide = np.asarray(their, np.float64)
            scale = max(1.0, float(np.max(np.abs(wide[np.isfinite(wide)]), initial=0.0)))
            tolerance = part * scale * TOLERANCE[_precision(drawn, their)]
            unequal = ~np.isclose(our, wide, rtol=0, atol=tolerance, equal_nan=True)
        if unequal.any():
            at = tuple(int(i) for i in np.argwhere(unequal)[0])
            return f"{name}{list(at)}: {our[at]!r} instead of {their[at]!r}, {unequal.sum()} such"
    return ""


def _precision(drawn: Drawn, value: Array) -> str:
    """The narrowest float type of the model's values that are rounded, and of the output."""
    rounded = [item for name, item in drawn.values.items() if name not in drawn.exact]
    types = {item.dtype for item in (value, *rounded) if item.dtype.kind == "f"}
    return str(min(types, key=lambda dtype: dtype.itemsize))


# Shrinking ---------------------------------------------------------------------------------------


def smaller(drawn: AnyDrawn, breaks: Callable[[AnyDrawn], bool]) -> AnyDrawn:
    """A part of the model that still breaks: one output, and as few nodes as go."""
    for output in drawn.outputs:
        alone = _used(replace(drawn, outputs=(output,)))
        if len(drawn.outputs) > 1 and breaks(alone):
            drawn = alone
            break
    changed = True
    while changed:
        changed = False
        for part in _parts(drawn):
            if len(part.nodes) < len(drawn.nodes) and breaks(part):
                drawn, changed = part, True
                break
    return drawn


def _parts(drawn: AnyDrawn) -> list[AnyDrawn]:
    """Models that end at another value, or begin at one: the shortest ends first."""
    made = [name for node in drawn.nodes for name in node.output if name]
    ends = [_used(replace(drawn, outputs=(name,))) for name in made]
    begins = [
        _used(replace(drawn, inputs=(*drawn.inputs, name)))
        for name in reversed(made)
        if name not in drawn.outputs
    ]
    return [part for part in (*ends, *begins) if part.nodes]


def _used(drawn: AnyDrawn) -> AnyDrawn:
    """The model without what its outputs do not need."""
    wanted = set(drawn.outputs)
    given = {*drawn.inputs, *drawn.constants}
    kept: list[onnx.NodeProto] = []
    for node in reversed(drawn.nodes):
        if wanted.intersection(node.output) - given:
            kept.insert(0, node)
            wanted |= names_read(node)
    return replace(
        drawn,
        nodes=tuple(kept),
        inputs=tuple(name for name in drawn.inputs if name in wanted),
        constants=tuple(name for name in drawn.constants if name in wanted),
    )


def printed(drawn: Drawn) -> str:
    """The model's text; small values of its inputs below."""
    lines = [printer.to_text(drawn.proto())]
    lines += [f"{name} = {drawn.values[name].tolist()}" for name in drawn.inputs]
    return "\n".join(line if len(line) < 4000 else f"{line[:4000]} ..." for line in lines)
