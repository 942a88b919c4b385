"""Numbers too small to be normal are flushed in what is computed, and callers notice nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper

from tests.compiler.foreign_models import DOMAIN, custom, first_alike
from tests.compiler.frontend.onnx_models import model, node, tensor
from tests.compiler.graph.graph_helpers import GraphMaker
from tests.compiler.runtime.c_models import STRICT, cc, run
from tests.compiler.runtime.emulated import COMPILER, emulated, run_emulated
from tests.targets import target_named
from tunefarm.compiler import build, load, register_function, unregister_function
from tunefarm.compiler.emit import assembly_text
from tunefarm.compiler.errors import FunctionError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.llvm.peak_loop import REPEAT_SYMBOL, repeat_call_object
from tunefarm.compiler.machine.float_state import float_state_ir
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.artefact.manifest import manifest_to_json, spec_from_json
from tunefarm.compiler.runtime.artefact.seal import code_digest
from tunefarm.compiler.runtime.c_library.export_c import export_library
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.denormals import flushed
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import FLUSH, KEEP, Denormals

Floats = npt.NDArray[np.float32]

STATE = 0xFFC0  # of MXCSR all but the flags of what has happened, which Python's arithmetic raises
ROUNDED_DOWN = {"x86_64": 0x2000, "aarch64": 0x800000}[host_target().triple.split("-")[0]]
RNG = np.random.default_rng(3)
BOTH: tuple[Denormals, ...] = (FLUSH, KEEP)


def tiny(*shape: int) -> Floats:
    """Denormal numbers of both signs."""
    magnitudes = RNG.uniform(1e-41, 9e-39, shape)
    return np.asarray(magnitudes * RNG.choice((-1, 1), shape), np.float32)


def normal(*shape: int) -> Floats:
    return RNG.standard_normal(shape).astype(np.float32)


def bits(array: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    return np.asarray(array).view(np.uint32)


class ThreadFloats:
    """This thread's state of floats."""

    def __init__(self) -> None:
        ir = float_state_ir(host_target().triple, "own") + (
            "define i64 @read() { %now = call i64 @own.get() ret i64 %now }\n"
            "define void @write(i64 %to) { call void @own.set(i64 %to) ret void }\n"
        )
        self._code = LoadedCode((), ("read", "write"), ir)
        self._read = ctypes.CFUNCTYPE(ctypes.c_int64)(self._code.address("read"))
        self.write = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self._code.address("write"))

    def read(self) -> int:
        return int(self._read()) & (STATE | ROUNDED_DOWN | 1 << 24)


@cache
def floats() -> ThreadFloats:
    return ThreadFloats()


@pytest.fixture(autouse=True)
def _states() -> Iterator[None]:
    yield
    unregister_function(f"{DOMAIN}::State")


def convolution(weights: Floats, side: int, threads: int, denormals: Denormals) -> Executable:
    maker = GraphMaker()
    x = maker.input(1, weights.shape[1], side, side)
    y = maker.node("conv", x, maker.constant(weights))
    return build(maker.graph(y), threads=threads, denormals=denormals)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [1, 3])
def test_denormal_weights_count_as_zeros(size: int, threads: int) -> None:
    weights, side = normal(32, 32, size, size), 24
    weak = RNG.random(weights.shape) < 0.2
    weights[weak] = tiny(int(weak.sum()))
    x = np.full((1, 32, side, side), 2.0**60, np.float32)
    found = convolution(weights, side, threads, FLUSH)
    zeros = convolution(np.where(weak, np.float32(0), weights), side, threads, KEEP)
    np.testing.assert_array_equal(
        [*found.run({"x0": x}).values()], [*zeros.run({"x0": x}).values()]
    )
    if size > 1:  # those of matrix products are read as they are
        (packed,) = found.spec.constants
        assert flushed(packed) is packed


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("denormals", BOTH)
def test_denormal_inputs(denormals: Denormals, threads: int) -> None:
    """Of 2^100 times the identity, which says what each thread did with each input."""
    x = tiny(1, 64, 64, 64)
    weights = (2.0**100 * np.eye(64)).astype(np.float32).reshape(64, 64, 1, 1)
    executable = convolution(weights, 64, threads, denormals)
    for _ in range(20):
        (found,) = executable.run({"x0": x}).values()
        expected = np.zeros_like(x) if denormals == FLUSH else x * np.float32(2.0**100)
        np.testing.assert_array_equal(found, expected)


def test_threads_of_the_pool_serve_models_of_both_kinds() -> None:
    x = tiny(1, 64, 64, 64)
    weights = (2.0**100 * np.eye(64)).astype(np.float32).reshape(64, 64, 1, 1)
    models = [convolution(weights, 64, 2, denormals) for denormals in BOTH]
    for _ in range(20):
        (zero,), (kept,) = (executable.run({"x0": x}).values() for executable in models)
        assert not np.any(zero)
        np.testing.assert_array_equal(kept, x * np.float32(2.0**100))


@pytest.mark.parametrize("operator", ["LSTM", "GRU"])
@pytest.mark.parametrize("denormals", BOTH)
def test_states_decay_to_zero(operator: str, denormals: Denormals) -> None:
    """On silence the state is halved each step: after 140 it is 2^-140, or nothing."""
    steps, hidden = 140, 8
    gates = {"LSTM": 4, "GRU": 3}[operator]
    weights = {
        "w": np.zeros((1, gates * hidden, 4), np.float32),
        "r": np.zeros((1, gates * hidden, hidden), np.float32),
        "h": np.ones((1, 1, hidden), np.float32),
        "c": np.ones((1, 1, hidden), np.float32),
    }
    state = ["h", "c"] if operator == "LSTM" else ["h"]
    last = ["", "", "last"] if operator == "LSTM" else ["", "last"]
    scan = helper.make_node(operator, ["x", "w", "r", "", "", *state], last, hidden_size=hidden)
    proto = model([scan], [tensor("x", (steps, 1, 4))], ["last"], weights)
    executable = build(import_model_proto(proto), denormals=denormals)
    last_state = executable.run({"x": np.zeros((steps, 1, 4), np.float32)})["last"]
    expected = 0.0 if denormals == FLUSH else 2.0**-140
    np.testing.assert_array_equal(last_state, np.full_like(last_state, expected))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_are_flushed(dtype: type[np.floating]) -> None:
    maker = GraphMaker()
    x = maker.input(100, dtype=DType.from_numpy(np.dtype(dtype)))
    half = maker.constant(np.array(0.5, dtype))
    graph = maker.graph(maker.node("mul", x, half))
    least = np.full(100, np.finfo(dtype).smallest_normal, dtype)
    (zero,), (kept,) = (build(graph, denormals=d).run({"x0": least}).values() for d in BOTH)
    assert not np.any(zero)
    np.testing.assert_array_equal(kept, least / 2)


def test_narrow_floats_keep_all_their_numbers() -> None:
    """What is denormal in f16 is normal where it is computed with."""
    maker = GraphMaker()
    graph = maker.graph(
        maker.node(
            "add", maker.input(1023, dtype=DType.F16), maker.constant(np.zeros((), np.float16))
        )
    )
    x = np.arange(1, 1024, dtype=np.uint16).view(np.float16)
    (found,) = build(graph).run({"x0": x}).values()
    np.testing.assert_array_equal(found, x)


def test_movements_keep_bits() -> None:
    maker = GraphMaker()
    x, table = maker.input(37, 29), tiny(37, 29)
    rows = maker.input(5, dtype=DType.I64)
    turned = maker.node("transpose", x, perm=(1, 0))
    taken = maker.node("gather", maker.constant(table), rows, axis=0)
    flipped = maker.node("neg", x)
    given, chosen = tiny(37, 29), np.array([3, 1, 36, 0, 3])
    executable = build(maker.graph(turned, taken, flipped), threads=2)
    found = executable.run({"x0": given, "x1": chosen})
    np.testing.assert_array_equal(bits(found[turned]), bits(given.T.copy()))
    np.testing.assert_array_equal(bits(found[taken]), bits(table[chosen]))
    np.testing.assert_array_equal(bits(found[flipped]), bits(-given))


@pytest.mark.parametrize("is_known", [False, True])
def test_bits_of_denormal_numbers_stay(is_known: bool) -> None:
    maker, patterns = GraphMaker(), bits(tiny(513)).view(np.int32)
    of = (
        maker.constant
        if is_known
        else lambda array: maker.input(*array.shape, dtype=DType.from_numpy(array.dtype))
    )
    as_floats = maker.node("bit_cast", of(patterns), to="f32")
    as_integers = maker.node("bit_cast", of(patterns.view(np.float32)), to="i32")
    feeds = {} if is_known else {"x0": patterns, "x1": patterns.view(np.float32)}
    found = build(maker.graph(as_floats, as_integers)).run(feeds)
    np.testing.assert_array_equal(found[as_floats].view(np.int32), patterns)
    np.testing.assert_array_equal(found[as_integers], patterns)


@pytest.mark.parametrize("denormals", BOTH)
@pytest.mark.parametrize("size", [16, 100_000])
def test_constants_are_folded_as_they_are_computed(size: int, denormals: Denormals) -> None:
    """Small ones could be when the model is read, all are where the graph is made simple."""
    nodes = [
        node("Mul", "a b", "large"),
        node("Mul", "c d", "small"),
        node("Neg", "a", "moved"),
        node("Less", "z a", "positive"),
        node("Cast", "positive", "sign", to=onnx.TensorProto.FLOAT),
    ]
    known = {
        "a": tiny(size),
        "b": np.full(size, 2.0**100, np.float32),
        "c": np.full(size, 2.0**-70, np.float32),
        "d": np.full(size, 2.0**-70, np.float32),
        "z": np.zeros(size, np.float32),
    }
    outputs = ["large", "small", "moved", "sign"]
    inputs = [tensor(name, array.shape) for name, array in known.items()]
    folded = build(import_model_proto(model(nodes, [], outputs, known)), denormals=denormals)
    computed = build(import_model_proto(model(nodes, inputs, outputs)), denormals=denormals)
    assert {name for kernel in folded.kernels for name in kernel.operators} == {"identity"}
    expected, found = computed.run(known), folded.run({})
    for name in outputs:
        np.testing.assert_array_equal(bits(found[name]), bits(expected[name]), err_msg=name)
    assert bool(np.any(found["large"])) is bool(np.any(found["small"])) is (denormals == KEEP)


@pytest.mark.parametrize("state", [0, ROUNDED_DOWN])
@pytest.mark.parametrize("denormals", BOTH)
def test_callers_state_is_the_same_behind_a_run(
    denormals: Denormals, state: int, tmp_path: Path
) -> None:
    proto = model([node("Exp", "x")], [tensor("x", ("n", 8))])
    graph = (
        import_model_proto(proto, {"n": ["1..9"]})
        if state
        else import_model_proto(proto, {"n": [4]})
    )
    built = build(graph, threads=2, denormals=denormals)
    built.save(tmp_path / "exp.tuned")
    executable = load(tmp_path / "exp.tuned")
    feeds = {"x": np.full((4, 8), -100, np.float32)}
    before = floats().read()
    floats().write(before | state)
    try:
        for _ in range(3):
            outputs = executable.run(feeds)
            assert floats().read() == before | state
        executable.profile(feeds, repeat=1)
        assert floats().read() == before | state
    finally:
        floats().write(before)
    assert bool(np.any(outputs["y"])) is (denormals == KEEP)  # exp(-100) is 4e-44


def test_functions_that_are_not_ours_have_the_callers_state() -> None:
    seen: list[int] = []

    def noted(x: Floats) -> Floats:
        seen.append(floats().read())
        if x[0] < 0:
            raise ValueError("less than nothing")
        return x

    register_function(f"{DOMAIN}::State", noted, first_alike, version="1")
    nodes = [custom("State", "x", "seen"), node("Mul", "seen x")]
    proto = model(nodes, [tensor("x", (4,))], domains={DOMAIN: 1})
    executable = build(import_model_proto(proto))
    before = floats().read()
    x = np.full(4, 2.0**-70, np.float32)
    assert not np.any(executable.run({"x": x})["y"])  # behind the call it is flushed again
    executable.profile({"x": x}, repeat=1)
    with pytest.raises(FunctionError, match="less than nothing"):
        executable.run({"x": -x})
    assert floats().read() == before
    assert set(seen) == {before} and len(seen) > 3


def test_kernels_are_timed_in_the_state_that_models_run_in() -> None:
    ir = float_state_ir(host_target().triple, "own") + (
        "define void @kernel(ptr %buffers, ptr %workspace, ptr %runtime) {\n"
        "  %now = call i64 @own.get()\n  store i64 %now, ptr %buffers\n  ret void\n}\n"
    )
    code = LoadedCode([repeat_call_object(host_target())], ("kernel", REPEAT_SYMBOL), ir)
    repeat = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 4)(
        code.address(REPEAT_SYMBOL)
    )
    state, before = ctypes.c_int64(), floats().read()
    repeat(code.address("kernel"), ctypes.addressof(state), None, None, 3, 0, 1, 0)
    flushing = {"x86_64": 0x8040, "aarch64": 1 << 24}[host_target().triple.split("-")[0]]
    assert state.value & flushing == flushing
    assert floats().read() == before


@pytest.mark.parametrize("denormals", BOTH)
def test_an_artefact_says_what_it_does(denormals: Denormals, tmp_path: Path) -> None:
    graph = import_model_proto(model([node("Exp", "x")], [tensor("x", (4,))]))
    executable = build(graph, denormals=denormals)
    executable.save(tmp_path / "exp.tuned")
    assert load(tmp_path / "exp.tuned").spec.denormals == denormals
    other = build(graph, denormals=KEEP if denormals == FLUSH else FLUSH)
    assert other.code_digest != executable.code_digest
    assert other.spec.digests == executable.spec.digests  # kernels and constants are the same


def test_files_from_before_there_was_a_choice_keep() -> None:
    proto = model([node("Exp", "x")], [tensor("x", (4,))])
    spec = compile_model(import_model_proto(proto), denormals=KEEP).spec
    manifest = manifest_to_json(spec, ())
    assert "denormals" not in manifest
    parts = [np.frombuffer(spec.entry, np.uint8)]
    parts += [np.frombuffer(part.code, np.uint8) for part in spec.objects]
    assert spec_from_json(manifest, parts, spec.digests).denormals == KEEP
    with pytest.raises(ValueError, match="flushed or kept"):
        spec_from_json({**manifest, "denormals": "maybe"}, parts, spec.digests)
    assert code_digest([spec]) != code_digest([replace(spec, denormals=FLUSH)])


PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "net.h"

static unsigned long long state(void)
{
#ifdef __x86_64__
    unsigned now;
    __asm__ volatile("stmxcsr %0" : "=m"(now));
    now &= STATE; /* without the flags of what has happened, which a run gives back if it flushes */
#else
    unsigned long long now;
    __asm__ volatile("mrs %0, fpcr" : "=r"(now));
#endif
    return now;
}

int main(void)
{
    static float x[64 * 1024], y[64 * 1024];
    struct net_io io = {.x = x, .y = y};
    void *workspace = aligned_alloc(NET_ALIGNMENT, net_workspace_bytes());
    int tiny = 0, same = 1;

    for (int i = 0; i < 64 * 1024; i++)
        x[i] = 0x1p-70f;
    const unsigned long long before = state();
    same &= net_run(&io, workspace) == NET_OK && state() == before;
    for (int i = 0; i < 64 * 1024; i++)
        tiny += y[i] != 0;
    io.x = NULL;
    same &= net_run(&io, workspace) == NET_ERROR_NULL && state() == before;
    printf("%d %d\n", same, tiny);
    return 0;
}
"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("denormals", BOTH)
def test_c_libraries_give_the_callers_state_back(
    denormals: Denormals, threads: int, tmp_path: Path
) -> None:
    proto = model([node("Mul", "x x")], [tensor("x", (64, 1024))])
    spec = compile_model(import_model_proto(proto), threads=threads, denormals=denormals).spec
    export_library(spec, tmp_path, "net")
    (tmp_path / "main.c").write_text(PROGRAM)
    cc(
        tmp_path,
        *_without(STRICT, "-pedantic"),
        f"-DSTATE={0xFFFF if denormals == FLUSH else STATE}",
        "main.c",
        "-L.",
        "-lnet",
        "-Wl,-rpath,$ORIGIN",
        "-o",
        "main",
    )
    kept = 0 if denormals == FLUSH else 64 * 1024
    assert run(tmp_path, "./main") == f"1 {kept}\n"


@emulated
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("denormals", BOTH)
def test_64_bit_arm_flushes_too(denormals: Denormals, threads: int, tmp_path: Path) -> None:
    arm = target_named("armv8-neon")
    proto = model([node("Mul", "x x")], [tensor("x", (64, 1024))])
    compiled = compile_model(
        import_model_proto(proto), target=arm, threads=threads, denormals=denormals, keep_llvm=True
    )
    assert ("msr\tFPCR" in assembly_text(compiled)) is (denormals == FLUSH)
    export_library(compiled.spec, tmp_path, "net")
    (tmp_path / "main.c").write_text(PROGRAM)
    linked = ("-L.", "-lnet", "-Wl,-rpath,$ORIGIN", "-o", "main")
    run(tmp_path, COMPILER, "-std=gnu11", "-O1", "main.c", *linked)
    kept = 0 if denormals == FLUSH else 64 * 1024
    assert run_emulated(tmp_path, "main") == f"1 {kept}\n"


def _without(flags: Sequence[str], flag: str) -> list[str]:
    return [item for item in flags if item != flag]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_flushed_arrays(dtype: type[np.floating]) -> None:
    info = np.finfo(dtype)
    least, most = info.smallest_subnormal, np.nextafter(info.smallest_normal, dtype(0))
    kept = np.array([0.0, -0.0, info.smallest_normal, -info.smallest_normal, np.inf, np.nan, 1])
    kept = kept.astype(dtype)
    assert flushed(kept) is kept
    mixed = np.concatenate([kept, np.array([least, -least, most, -most], dtype)])
    zeros = np.array([0.0, -0.0, 0.0, -0.0], dtype)
    assert flushed(mixed).tobytes() == np.concatenate([kept, zeros]).tobytes()
    integers = np.array([1, 2, 3], np.int32)
    assert flushed(integers) is integers
