"""Drawn models with symbols as C libraries for 64-bit Arm, run by an emulator where there is one.

python -m tests.attack emulated --attempts 200 --seconds 3600
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

import onnx

from tests.attack.attack import Outcome
from tests.attack.emulated_sizes import sized_outputs
from tests.attack.sized import Calls, Sized
from tests.attack.sized_drawing import SizedDrawn
from tests.compiler.runtime.emulated import COMPILER, EMULATOR
from tests.targets import target_named
from tunefarm import compiler
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.import_onnx import import_onnx
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.extents import Shapes

ARMS = ("armv8-neon", "neoverse-v1")
NO_EMULATOR = "no emulator"
_REFUSED = "must be equal: node"


class Emulated(Sized):
    """Draws a model with symbols, and runs it as a machine of another kind would."""

    name: ClassVar[str] = "emulated"
    share: ClassVar[float] = 1.0

    def attempt(self, seed: int) -> Outcome:
        """Build the model of this seed for Arm, and compare it with onnxruntime at its sizes."""
        return super().attempt(seed) if _is_emulated() else Outcome(NO_EMULATOR)

    def target_of(self, seed: int) -> Target:
        """One of the Arms by turns."""
        return target_named(ARMS[seed % len(ARMS)])

    def built(self, path: Path, shapes: Shapes, seed: int) -> Executable:
        """What has no symbols after all is built for this machine: of it there are other tests."""
        return compiler.build(path, shapes=shapes)

    def _run_ours(self, drawn: SizedDrawn, seed: int) -> list[Calls]:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        onnx.save(drawn.proto(), folder / "drawn.onnx")
        graph = import_onnx(folder / "drawn.onnx", drawn.shapes())
        if graph.is_fixed or not _is_emulated():
            return super()._run_ours(drawn, seed)
        spec = compile_model(graph, target=self.target_of(seed)).spec
        calls = drawn.calls()
        order = sorted(range(len(calls)), key=lambda n: -sum(a.size for a in calls[n].values()))
        made = [*calls, *(calls[number] for number in order)]
        try:
            found = sized_outputs(spec, folder, made, poisoned=len(calls))
        except AssertionError as error:
            if _REFUSED in str(error):  # as the executable does, by an error of the project's own
                raise ShapeError(str(error)) from error
            raise
        shrinking = dict(zip(order, found[len(calls) :], strict=True))
        return [found[: len(calls)], [shrinking[number] for number in range(len(calls))]]


def _is_emulated() -> bool:
    return all(map(shutil.which, (EMULATOR, COMPILER)))
