"""The graph of a model's kernels, as it is read from where their operands lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser

from tests.compiler.runtime.hand_kernels import COUNT, chain_spec
from tunefarm.compiler.kernels.kernel import JoinCall, KernelCall, KernelProgram, ViewCall
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.spec.step_reads import step_reads

JOINED = """
<ir_version: 9, opset_import: ["": 17]>
joined (float[16,16] x) => (float[32,16] y, float[16,16] a) {
    a = MatMul(x, x)
    b = MatMul(a, x)
    c = Concat<axis=0>(b, a)
    d = MatMul(c, b)
    e = Softmax(d)
    f = MatMul(e, a)
    y = Add(f, c)
}
"""


def by_names(program: KernelProgram) -> list[tuple[int, ...]]:
    """What the names of values say: which kernel calls each kernel call reads."""
    made: dict[str, set[int]] = {}
    found: list[tuple[int, ...]] = []
    for call in program.calls:
        match call:
            case ViewCall():
                made[call.output] = made.get(call.input, set())
            case JoinCall():
                made[call.output] = {w for name in call.inputs for w in made[name]}
            case KernelCall():
                reads = {w for name in call.inputs for w in made.get(name, ())}
                found.append(tuple(sorted(reads)))
                made[call.output] = {len(found) - 1}
            case _:
                raise AssertionError(call)
    return found


def test_steps_read_what_others_wrote_at_their_places() -> None:
    reads = step_reads(chain_spec(np.ones(COUNT, np.float32)))
    assert reads[0] == () and all(reads[1:])
    assert all(reader > written for reader, each in enumerate(reads) for written in each)


def test_places_say_the_same_as_names(tmp_path: Path) -> None:
    path = tmp_path / "joined.onnx"
    onnx.save(onnx.parser.parse_model(JOINED), path)
    compiled = compile_model(path)
    wanted = by_names(compiled.program)
    assert len(wanted) >= 4 and max(map(len, wanted)) >= 2
    assert list(step_reads(compiled.spec)[: len(wanted)]) == wanted
