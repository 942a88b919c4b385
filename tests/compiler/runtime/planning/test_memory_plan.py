"""The memory plan: liveness, reuse, and that nothing live is ever overwritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.compiler.frontend.onnx_models import BOOL, integers, model, tensor
from tunefarm import compiler
from tunefarm.compiler.errors import InputError, VerifyError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.kernel import Call, JoinCall, KernelCall, KernelProgram, ViewCall
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.planning.memory_plan import (
    BufferLife,
    MemoryPlan,
    Stored,
    lower_bound,
    place_buffers,
    plan_memory,
    verify_placement,
)
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT, Location, Place
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array, TensorType

Calls = list[Call]


def a_call(inputs: Sequence[str], output: str) -> KernelCall:
    kernel = cast(Any, SimpleNamespace(name="k"))
    return KernelCall(kernel, "key", tuple(inputs), output, (), ())


def a_program(
    inputs: Sequence[str],
    outputs: Sequence[str],
    calls: Sequence[Call],
    sizes: dict[str, int],
    constants: Sequence[str] = (),
) -> KernelProgram:
    types = {name: TensorType(DType.U8, (size,)) for name, size in sizes.items()}
    return KernelProgram(
        "p", tuple(inputs), tuple(outputs), tuple(calls), types, cast(Any, dict.fromkeys(constants))
    )


def test_chain_needs_two_buffers_at_a_time() -> None:
    names = [f"v{i}" for i in range(6)]
    calls: Calls = [a_call([a], b) for a, b in zip(["x", *names], [*names, "y"], strict=True)]
    program = a_program(["x"], ["y"], calls, dict.fromkeys(["x", "y", *names], 640))
    plan = plan_memory(program, [0] * len(calls))
    assert plan.arena_bytes == 2 * 640 == plan.lower_bound
    assert plan.locations["x"] == Location(Place.INPUT, 0)
    assert plan.locations["y"] == Location(Place.OUTPUT, 0)
    assert plan.copies == ()


def test_workspace_does_not_overlap_what_its_call_reads_and_writes() -> None:
    calls: Calls = [a_call(["x"], "a"), a_call(["a"], "b"), a_call(["b"], "y")]
    program = a_program(["x"], ["y"], calls, {"x": 64, "a": 64, "b": 64, "y": 64})
    plan = plan_memory(program, [0, 1000, 0])
    workspace = plan.workspaces[1]
    assert plan.workspaces == (None, workspace, None)
    assert workspace is not None
    for name in ("a", "b"):
        start = plan.locations[name].number
        assert start + 64 <= workspace or workspace + 1000 <= start


def test_view_keeps_its_source_alive_and_uses_its_memory() -> None:
    calls: Calls = [
        a_call(["x"], "a"),
        ViewCall("a", "v"),
        a_call(["x"], "b"),
        a_call(["b", "v"], "y"),
    ]
    program = a_program(["x"], ["y"], calls, dict.fromkeys("xavby", 64))
    plan = plan_memory(program, [0] * 4)
    assert plan.storage["v"] == Stored("a")
    assert plan.locations["a"] != plan.locations["b"]
    assert plan.arena_bytes == 128


def test_what_is_joined_is_written_into_the_result() -> None:
    calls: Calls = [
        a_call(["x"], "a"),
        a_call(["a"], "b"),
        JoinCall(("a", "b"), "ab"),
        a_call(["ab"], "c"),
        JoinCall(("a", "b", "c"), "abc"),
        ViewCall("abc", "bc", 100),
        a_call(["bc"], "y"),
    ]
    sizes = {"x": 64, "a": 100, "b": 10, "c": 50, "ab": 110, "abc": 160, "bc": 60, "y": 64}
    plan = plan_memory(a_program(["x"], ["y"], calls, sizes), [0] * 7)
    places = {name: plan.storage[name] for name in ("a", "b", "ab", "c", "bc")}
    offsets = {"a": 0, "b": 100, "ab": 0, "c": 110, "bc": 100}
    assert places == {name: Stored("abc", offset) for name, offset in offsets.items()}
    assert [buffer.name for buffer in plan.buffers] == ["abc"]
    assert (plan.buffers[0].first, plan.buffers[0].last) == (0, 6)


@pytest.mark.parametrize("name", ["x", "c", "v", "a"])
def test_join_of_what_cannot_lie_there_is_refused(name: str) -> None:
    calls: Calls = [
        a_call(["x"], "a"),
        a_call(["x"], "b"),
        ViewCall("b", "v", 8),
        JoinCall(("a", name), "y"),
    ]
    sizes = {**dict.fromkeys("xabc", 64), "v": 56, "y": 64 + (56 if name == "v" else 64)}
    program = a_program(["x"], ["y"], calls, sizes, ["c"])
    with pytest.raises(VerifyError, match=f"{name} cannot be a part of y"):
        plan_memory(program, [0] * 4)


def test_output_that_is_a_view_is_written_in_place() -> None:
    calls: Calls = [a_call(["x"], "a"), ViewCall("a", "y")]
    plan = plan_memory(a_program(["x"], ["y"], calls, dict.fromkeys("xay", 64)), [0, 0])
    assert plan.locations["a"] == Location(Place.OUTPUT, 0)
    assert plan.copies == ()
    assert plan.arena_bytes == 0


def test_outputs_that_no_kernel_writes_are_copied() -> None:
    calls: Calls = [a_call(["x"], "a"), ViewCall("a", "v"), ViewCall("x", "xv")]
    program = a_program(
        ["x"], ["a", "v", "x", "xv", "c"], calls, dict.fromkeys(["x", "a", "v", "xv", "c"], 64), "c"
    )
    plan = plan_memory(program, [0] * 3)
    assert plan.locations["a"] == Location(Place.OUTPUT, 0)
    assert plan.copies == (("v", 1), ("x", 2), ("xv", 3), ("c", 4))


def test_overlap_is_refused() -> None:
    buffers = [BufferLife("a", 100, 0, 2), BufferLife("b", 64, 2, 3)]
    with pytest.raises(VerifyError, match=r"a at 0 .* overlaps b at 64 at step 2"):
        verify_placement(buffers, [0, 64])
    verify_placement(buffers, [0, 128])


def test_overlap_under_a_third_buffer_is_refused() -> None:
    buffers = [BufferLife("a", 512, 0, 9), BufferLife("b", 64, 0, 0), BufferLife("c", 64, 5, 5)]
    with pytest.raises(VerifyError, match=r"a at 0 .* overlaps c at 448 at step 5"):
        verify_placement(buffers, [0, 512, 448])


def test_unaligned_offset_is_refused() -> None:
    with pytest.raises(VerifyError, match="offset 8"):
        verify_placement([BufferLife("a", 8, 0, 0)], [8])


lives = st.lists(
    st.builds(
        lambda size, first, length: BufferLife(f"{size}@{first}", size, first, first + length),
        st.integers(1, 5000),
        st.integers(0, 30),
        st.integers(0, 12),
    ),
    max_size=30,
)


@given(lives)
def test_placed_buffers_never_share_a_byte_while_live(buffers: list[BufferLife]) -> None:
    offsets = place_buffers(buffers)
    owner: dict[tuple[int, int], int] = {}  # (step, 64-byte line) -> buffer
    for i, (buffer, offset) in enumerate(zip(buffers, offsets, strict=True)):
        assert offset % ALIGNMENT == 0
        lines = range(offset // ALIGNMENT, -(-(offset + buffer.bytes) // ALIGNMENT))
        for step in range(buffer.first, buffer.last + 1):
            for line in lines:
                assert owner.setdefault((step, line), i) == i
    verify_placement(buffers, offsets)


@given(lives)
def test_lower_bound_is_the_most_bytes_live_at_a_step(buffers: list[BufferLife]) -> None:
    most = max(
        (
            sum(-(-b.bytes // 64) * 64 for b in buffers if b.first <= step <= b.last)
            for step in range(50)
        ),
        default=0,
    )
    assert lower_bound(buffers) == most


@st.composite
def programs(draw: st.DrawFn) -> tuple[KernelProgram, list[int]]:
    """Random programs with fan-out, views, parts, joins, dead values, and any values as outputs."""
    sizes = {"x0": draw(st.integers(1, 300)), "x1": draw(st.integers(1, 300)), "c": 64}
    calls: Calls = []
    workspaces = []
    free: list[str] = []  # values with memory of their own that lie in no join yet
    joined: list[str] = []  # what the last join is made of
    latest = ""
    for i in range(draw(st.integers(1, 16))):
        name = f"v{i}"
        known = st.sampled_from(sorted(sizes))
        kind = draw(st.integers(0, 7))
        workspaces.append(0)
        if kind < 2:
            source = draw(known)
            sizes[name] = sizes[source] if source == "c" else draw(st.integers(1, sizes[source]))
            calls.append(ViewCall(source, name, draw(st.integers(0, sizes[source] - sizes[name]))))
        elif kind < 4 and free:
            grows = latest in free and draw(st.booleans())  # then the latest is a part of this one
            others = [value for value in free if not grows or value != latest]
            more = (
                draw(st.lists(st.sampled_from(others), max_size=4, unique=True)) if others else []
            )
            joined = [*joined, *more] if grows else more or [free[0]]
            sizes[name] = sum(sizes[part] for part in joined)
            calls.append(JoinCall(tuple(joined), name))
            free = [value for value in others if value not in joined] + [name]
            latest = name
        else:
            inputs = draw(st.lists(known, max_size=3))
            sizes[name] = draw(st.integers(1, 300))
            calls.append(a_call(inputs, name))
            workspaces[-1] = draw(st.sampled_from([0, 0, 100]))
            free.append(name)
    outputs = draw(st.lists(st.sampled_from(sorted(sizes)), min_size=1, max_size=4))
    return a_program(["x0", "x1"], outputs, calls, sizes, ["c"]), workspaces


@settings(max_examples=120)
@given(programs())
def test_executing_a_plan_never_reads_overwritten_memory(
    case: tuple[KernelProgram, list[int]],
) -> None:
    program, workspaces = case
    plan = plan_memory(program, workspaces)
    memory = _Memory(program, plan)
    for step, item in enumerate(program.calls):
        if not isinstance(item, KernelCall):
            continue
        scratch = plan.workspaces[step]
        assert (scratch is None) == (workspaces[step] == 0)
        if scratch is not None:
            waste = _bytes_of("scratch", workspaces[step])
            memory.write(Location(Place.ARENA, scratch), waste)
        memory.write(plan.location(item.output), memory.contents[item.output])
        for name in item.inputs:
            memory.check(name)
    for name, number in plan.copies:
        memory.check(name)
        memory.write(Location(Place.OUTPUT, number), memory.contents[name])
    for number, name in enumerate(program.outputs):
        contents = memory.contents[name]
        assert memory.read(Location(Place.OUTPUT, number), len(contents)) == contents


Contents = list[tuple[str, int]]


def _bytes_of(name: str, size: int) -> Contents:
    return [(name, i) for i in range(size)]


class _Memory:
    """Every byte holds which byte of which kernel's result was last written there."""

    def __init__(self, program: KernelProgram, plan: MemoryPlan) -> None:
        self.plan = plan
        self.program = program
        self.cells: dict[tuple[Place, int, int], tuple[str, int]] = {}
        names = (*program.inputs, *program.constants)
        self.contents = {name: _bytes_of(name, program.types[name].bytes) for name in names}
        for number, name in enumerate(program.inputs):
            self.write(Location(Place.INPUT, number), self.contents[name])
        for call in program.calls:
            size = program.types[call.output].bytes
            if isinstance(call, ViewCall):
                whole = self.contents[call.input]
                made = whole[call.offset : call.offset + size]
            elif isinstance(call, JoinCall):
                made = [byte for name in call.inputs for byte in self.contents[name]]
            else:
                made = _bytes_of(call.output, size)
            self.contents[call.output] = made

    def _cells(self, location: Location, size: int) -> list[tuple[Place, int, int]]:
        if location.place is Place.ARENA:
            assert location.number + size <= self.plan.arena_bytes
            return [(Place.ARENA, 0, location.number + i) for i in range(size)]
        return [(location.place, location.number, location.offset + i) for i in range(size)]

    def write(self, location: Location, contents: Contents) -> None:
        self.cells.update(zip(self._cells(location, len(contents)), contents, strict=True))

    def read(self, location: Location, size: int) -> Contents:
        return [self.cells[cell] for cell in self._cells(location, size)]

    def check(self, name: str) -> None:
        if self.plan.storage[name].root in self.program.constants:
            return
        contents = self.contents[name]
        assert self.read(self.plan.location(name), len(contents)) == contents


SHAPE = (3, 5)


def executable_of(
    text: str,
    outputs: Sequence[str] = ("y",),
    constants: Mapping[str, Array] | None = None,
    past: tuple[int | str, ...] = SHAPE,
) -> Executable:
    """Of nodes as `y = Where(c, x, z)`, a line each."""
    nodes = []
    for line in text.splitlines():
        result, call = line.split(" = ")
        operator, inputs = call.rstrip(")").split("(")
        operator, _, axis = operator.partition(":")
        attributes: dict[str, Any] = {"axis": int(axis)} if axis else {}
        nodes.append(helper.make_node(operator, inputs.split(", "), [result], **attributes))
    used = {name for node in nodes for name in node.input}
    ports = [tensor("x", past), tensor("z", SHAPE), tensor("c", SHAPE, BOOL)]
    proto = model(nodes, [item for item in ports if item.name in used], outputs, constants)
    return Executable(compile_model(import_model_proto(proto)).spec)


@pytest.mark.parametrize(
    "text",
    ["y = Where(c, x, z)", "e = Exp(z)\ny = Where(c, x, e)", "e = Exp(z)\ny = Where(c, e, x)"],
)
def test_an_outcome_at_its_own_place_may_be_written_over(text: str) -> None:
    assert executable_of(text).in_place["y"] == "x"


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        ("y = Add(x, z)", ("y",)),  # twice over itself it would be another sum
        ("y = Relu(x)", ("y",)),
        ("n = Neg(x)\ny = Where(c, n, z)", ("y",)),
        ("y = Where(c, x, z)\nw = Exp(x)", ("y", "w")),  # w reads x too, maybe later
        ("l = Less(x, z)\ny = Where(l, x, z)", ("y",)),
        ("r = Gather:1(x, turned)\ny = Where(c, r, z)", ("y",)),
        ("s = ReduceMax(x)\ne = Mul(s, z)\ny = Where(c, x, e)", ("y",)),
    ],
)
def test_what_reads_more_than_its_own_place_may_not(text: str, outputs: Sequence[str]) -> None:
    constants = {"turned": integers(4, 3, 2, 1, 0)} if "turned" in text else None
    assert executable_of(text, outputs, constants).in_place.get("y") != "x"


def test_an_input_is_written_over_once() -> None:
    found = executable_of("y = Where(c, x, z)\nw = Where(c, z, x)", ("y", "w")).in_place
    assert len(set(found.values())) == len(found)


def test_a_run_in_place_gives_what_a_run_gives() -> None:
    executable = executable_of("y = Where(c, x, z)")
    random = np.random.default_rng(0)
    x, z = (random.standard_normal(SHAPE, dtype=np.float32) for _ in "xz")
    c = random.random(SHAPE) < 0.5
    expected = executable.run({"x": x, "z": z, "c": c})["y"]
    found = executable.run({"x": x, "z": z, "c": c}, in_place=True)["y"]
    assert found is x
    np.testing.assert_array_equal(found, expected)


def test_an_input_that_cannot_be_written_over_is_refused() -> None:
    executable = executable_of("y = Where(c, x, z)")
    x, z = np.zeros(SHAPE, np.float32), np.ones(SHAPE, np.float32)
    c = np.ones(SHAPE, np.bool_)
    frozen = x.copy()
    frozen.flags.writeable = False
    with pytest.raises(InputError, match="'x' is read-only"):
        executable.run({"x": frozen, "z": z, "c": c}, in_place=True)
    with pytest.raises(InputError, match="'x' does not lie as the model writes it"):
        executable.run({"x": np.zeros((5, 3), np.float32).T, "z": z, "c": c}, in_place=True)
    with pytest.raises(InputError, match="shares memory with another one"):
        executable.run({"x": x, "z": x, "c": c}, in_place=True)


def cache_of(positions: str) -> Executable:
    """A cache [2, past, 3] that grows by one."""
    node = helper.make_node("Concat", ["past", "new"], ["present"], axis=1)
    inputs = [tensor("past", (2, "past_length", 3)), tensor("new", (2, 1, 3))]
    graph = import_model_proto(model([node], inputs, ["present"]), {"past_length": (positions,)})
    return Executable(compile_model(graph).spec)


def test_a_cache_grows_in_its_memory() -> None:
    executable = cache_of("0..9")
    (cache,) = executable.empty_caches({"past_length": 0}).values()
    place, rows = cache.__array_interface__["data"][0], list[Array]()
    for number in range(10):
        rows.append(np.full((2, 1, 3), number, np.float32))
        cache = executable.run({"past": cache, "new": rows[-1]}, in_place=True)["present"]
        assert cache.__array_interface__["data"][0] == place
        np.testing.assert_array_equal(cache, np.concatenate(rows, 1))


def test_a_cache_that_lies_elsewhere_is_refused() -> None:
    executable = cache_of("0..9")
    past, new = np.zeros((2, 4, 3), np.float32), np.ones((2, 1, 3), np.float32)
    with pytest.raises(InputError, match="'past' does not lie as the model writes it"):
        executable.run({"past": past, "new": new}, in_place=True)


def test_an_artifact_says_what_is_written_in_place(tmp_path: Path) -> None:
    executable = cache_of("0..9")
    path = f"{tmp_path}/cache.tuned"
    executable.save(path)
    assert compiler.load(path).in_place == executable.in_place == {"present": "past"}


def test_caches_lie_alike_at_all_lengths() -> None:
    executable = cache_of("0..9")
    few, many = (executable.empty_caches({"past_length": n})["past"] for n in (2, 9))
    assert few.strides == many.strides
    assert few.shape == (2, 2, 3)
