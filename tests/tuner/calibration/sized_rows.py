"""A model of rows of any number, on which positions weigh the more the further back they are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx

from tests.compiler.frontend.onnx_models import model, tensor
from tests.compiler.frontend.sized_cases import floats

MOST_ROWS = 12
SHAPES = {"b": ("1..3",), "s": (f"1..{MOST_ROWS}",)}
POSITIONS = np.outer(1.25 ** np.arange(MOST_ROWS), np.ones(16)).astype(np.float32)
FIRST: npt.NDArray[np.float32] = floats(16, 24).astype(np.float32)
SECOND: npt.NDArray[np.float32] = floats(24, 8).astype(np.float32)


def sized_rows() -> onnx.ModelProto:
    """y = relu((x + positions) first) second, of x [b, s, 16]."""
    nodes = (
        "shape = Shape x; s = Gather shape one; numbers = Range zero s one; "
        "own = Gather positions numbers; sum = Add x own; wide = MatMul sum first name=first; "
        "kept = Relu wide; MatMul kept second name=second"
    )
    constants = {
        "one": np.array(1),
        "zero": np.array(0),
        "positions": POSITIONS,
        "first": FIRST,
        "second": SECOND,
    }
    return model(nodes, [tensor("x", ["b", "s", 16])], constants=constants)


def sized_run(batch: int, rows: int) -> dict[str, npt.NDArray[np.float32]]:
    rng = np.random.default_rng(rows)
    return {"x": rng.standard_normal((batch, rows, 16), dtype=np.float32)}


def sums(run: Mapping[str, npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """What the first product reads."""
    return run["x"] + POSITIONS[: run["x"].shape[1]]


def kept(run: Mapping[str, npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """What the second product reads."""
    result: npt.NDArray[np.float32] = np.maximum(np.matmul(sums(run), FIRST), 0)
    return result


def expected(run: Mapping[str, npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """y."""
    result: npt.NDArray[np.float32] = np.matmul(kept(run), SECOND)
    return result
