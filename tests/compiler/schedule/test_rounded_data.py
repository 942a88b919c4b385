"""Products with packed weights of data rounded to 8 bits: what they are, and how far from f32."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.compiler.decoders import Sizes, decoder
from tests.compiler.schedule.guarded_run import run_guarded
from tests.compiler.schedule.test_dot_products import TARGETS, x86
from tests.onnxruntime_session import exact_session
from tunefarm.compiler import build
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.weight_products import packed
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.limb_dot import apply_limb_dot, with_rounded_data
from tunefarm.compiler.operators.evaluate_node import node_kernel
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.schedule.steps.loop_kinds import Prefetch
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.conversions import converted
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.numerics import INT8_ACTIVATIONS, NUMERICS, Algorithm
from tunefarm.compiler.types.tensor_type import Array, TensorType

Doubles = npt.NDArray[np.float64]
LONGEST = 128  # terms that share a step


class Product:
    """A kernel that multiplies [rows, inner] by weights, [inner, columns], and its inputs."""

    def __init__(
        self,
        rows: int,
        columns: int,
        blocks: int,
        block: int,
        bits: int = 4,
        *,
        zero: bool = False,
        dtype: DType = DType.F32,
        seed: int = 0,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.bits, self.block, inner, half = bits, block, blocks * block, 1 << (bits - 1)
        parameters = (blocks, columns)
        self.data = converted(rng.standard_normal((rows, inner)), dtype)
        self.numbers = rng.integers(-half, half, (inner, columns)).astype(np.int8)
        self.scale = converted(rng.uniform(0.5, 1.0, parameters), dtype)
        self.zero = rng.integers(-half, half, parameters).astype(np.int8) if zero else None
        given = [self.data, packed(self.numbers, bits), self.scale]
        given += [] if self.zero is None else [self.zero]
        self.names = tuple(f"in{number}" for number in range(len(given)))
        types = [TensorType(DType.from_numpy(array.dtype), array.shape) for array in given]
        attributes = MappingProxyType({"bits": bits, "block": block})
        node = Node("weight_product", self.names, "y", attributes)
        self.kernel = node_kernel(node, tuple(types), (False, *(True,) * (len(given) - 1)))
        self.constants = dict(zip(self.names[1:], given[1:], strict=True))

    @property
    def inputs(self) -> dict[str, Array]:
        return {"in0": self.data, **self.constants}

    @property
    def chunk(self) -> int:
        """The longest part of a block, in whole words, that has a step."""
        words = self.block * self.bits // 32
        lengths = [self.block // parts for parts in range(1, words + 1) if words % parts == 0]
        return next(length for length in lengths if length <= LONGEST)

    def weights(self) -> Doubles:
        """[inner, columns] as floats."""
        shifted = self.numbers.astype(np.float64)
        if self.zero is not None:
            shifted -= np.repeat(self.zero.astype(np.float64), self.block, axis=0)
        return shifted * np.repeat(self.scale.astype(np.float64), self.block, axis=0)

    def largest(self) -> npt.NDArray[np.float32]:
        """The largest number of each row and chunk, 127 steps: [rows, chunks, 1]."""
        chunks = self.data.astype(np.float32).reshape(len(self.data), -1, self.chunk)
        largest: npt.NDArray[np.float32] = np.abs(chunks).max(axis=-1, keepdims=True)
        return np.maximum(largest, np.float32(2.0**-118), dtype=np.float32)

    def rounded(self) -> Doubles:
        """The data as it is multiplied: 127 steps are the largest of a chunk."""
        largest = self.largest()
        chunks = self.data.astype(np.float32).reshape(*largest.shape[:2], self.chunk)
        whole = np.rint(chunks * (np.float32(127) / largest))
        unit = largest * np.float32(1 / 127)
        return (whole.astype(np.float64) * unit.astype(np.float64)).reshape(self.data.shape)


def schedule_of(kernel: FusedKernel, target: Target, threads: int = 1) -> Schedule:
    sketch = schedule_space(kernel, target, threads, INT8_ACTIVATIONS).sketch("rounded")
    choices = zip((choice.name for choice in sketch.choices), sketch.default, strict=True)
    return sketch.build(dict(choices))


def run(product: Product, target: Target | None = None) -> Doubles:
    target = target or host_target()
    schedule = schedule_of(product.kernel, target)
    assert schedule.algorithm is Algorithm.ROUNDED_DATA
    return run_guarded(product.kernel, schedule, product.inputs, target).output.astype(np.float64)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_every_schedule_multiplies_data_rounded_by_row_and_block(data: st.DataObject) -> None:
    bits = data.draw(st.sampled_from((4, 8, 2)), "bits")
    block = data.draw(st.sampled_from((16, 32, 64, 128, 384)), "block")
    product = Product(
        data.draw(st.integers(1, 70), "rows"),
        data.draw(st.sampled_from((16, 17, 31, 64, 131)), "columns"),
        data.draw(st.sampled_from((1, 2, 3, 7)), "blocks"),
        block,
        bits,
        zero=data.draw(st.booleans(), "zero points"),
        dtype=data.draw(st.sampled_from((DType.F32, DType.F32, DType.F16)), "data"),
        seed=data.draw(st.integers(0, 9), "seed"),
    )
    target = TARGETS[data.draw(st.sampled_from(sorted(TARGETS)), "target")]
    threads = data.draw(st.sampled_from((1, 2)), "threads")
    space = schedule_space(product.kernel, target, threads, INT8_ACTIVATIONS)
    sketches = [sketch.name for sketch in space.sketches]
    if "rounded" not in sketches:  # a vector is longer than a row of the result, or 16 bits are
        assert product.scale.shape[1] < target.lanes(DType.F32) or product.data.dtype != np.float32
        return
    sketch = space.sketch("rounded")
    choices = {c.name: data.draw(st.sampled_from(c.values), c.name) for c in sketch.choices}
    note(str(choices))
    got = run_guarded(product.kernel, sketch.build(choices), product.inputs, target, threads)
    terms = product.rounded(), product.weights()
    limit = 4e-6 * (np.abs(terms[0]) @ np.abs(terms[1])).max()
    limit += DType.from_numpy(product.data.dtype).epsilon * np.abs(terms[0] @ terms[1]).max()
    np.testing.assert_allclose(
        got.output.astype(np.float64), terms[0] @ terms[1], rtol=0, atol=limit
    )


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(("bits", "block"), [(2, 64), (4, 16), (4, 32), (4, 128), (8, 32), (8, 64)])
def test_integers_with_a_step_of_1_are_multiplied_exactly(
    bits: int, block: int, zero: bool, target: str
) -> None:
    """The largest data and weights of both signs too: no instruction may saturate."""
    product = Product(5, 64, 3, block, bits, zero=zero)
    rng = np.random.default_rng(1)
    half = 1 << (bits - 1)
    data = rng.integers(-127, 128, product.data.shape)
    data[0], data[1] = 127, -127
    data[:, :: product.chunk] = 127  # the step of each chunk is 1
    numbers = product.numbers
    numbers[:, 0], numbers[:, 1] = half - 1, -half
    product.data = data.astype(np.float32)
    product.scale = np.ones_like(product.scale)
    product.constants |= {"in1": packed(numbers, bits), "in2": product.scale}
    expected = data.astype(np.float64) @ product.weights()
    assert (np.abs(expected) < 1 << 24).all()  # they and their sums are floats
    assert np.array_equal(run(product, TARGETS[target]), expected)


@pytest.mark.parametrize(("bits", "block"), [(2, 64), (4, 16), (4, 32), (4, 128), (8, 64)])
def test_error_is_at_most_half_a_step_of_each_term(bits: int, block: int) -> None:
    product = Product(9, 131, 4, block, bits, zero=True, seed=3)
    weights = product.weights()
    got, exact = run(product), product.data.astype(np.float64) @ weights
    half = np.repeat(product.largest()[..., 0].astype(np.float64) / 254, product.chunk, axis=1)
    bound = half @ np.abs(weights)
    error = np.abs(got - exact)
    assert (error <= bound * (1 + 1e-5)).all()
    assert error.max() > 1e-4 * np.abs(exact).max()  # it is a precision of its own


@pytest.mark.parametrize("block", [16, 32, 128])
def test_each_block_of_a_row_has_its_own_step(block: int) -> None:
    """A block of small numbers next to one of large ones, and next to a large row, keeps them."""
    product = Product(3, 64, 2, block)
    product.data[:, block:] = 0.0
    alone = run(product)
    product.data[1] *= 1e6
    both = run(product)
    assert np.array_equal(both[[0, 2]], alone[[0, 2]])
    product.data[0, block:] = 1e4
    product.constants["in2"] = product.scale.copy()
    product.constants["in2"][1] = 0.0
    assert np.array_equal(run(product)[0], alone[0])


@pytest.mark.parametrize("size", [0.0, 1e-44, 1e-38, 1e-30, 1e30])
def test_data_of_any_size_is_rounded_relative_to_its_largest(size: float) -> None:
    product = Product(3, 64, 4, 32)
    product.data = (product.data.astype(np.float64) * size).astype(np.float32)
    exact = product.data.astype(np.float64) @ product.weights()
    limit = 0.05 * np.abs(exact).max() + 128 * 2.0**-118
    np.testing.assert_allclose(run(product), exact, rtol=0, atol=limit)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_with_data_that_is_not_finite_has_no_sums(value: float) -> None:
    product = Product(3, 64, 2, 32)
    product.data[1, 40] = value
    got = run(product)
    assert np.isnan(got[1]).all() and np.isfinite(got[[0, 2]]).all()


def test_only_the_precision_of_that_name_rounds_data() -> None:
    kernel = Product(4, 64, 2, 32).kernel
    names = {
        name
        for name in NUMERICS
        if any(
            sketch.algorithm is Algorithm.ROUNDED_DATA
            for sketch in schedule_space(kernel, host_target(), 1, name).sketches
        )
    }
    assert names == {"int8-activations"}


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_rounded_data_leads_where_bytes_are_multiplied(rows: int) -> None:
    kernel = Product(rows, 64, 2, 32).kernel
    for name in {"avx2", "host"} & TARGETS.keys():
        target = TARGETS[name]
        fast = {"avx2", "dotprod", "i8mm"} & set(target.features)
        first = schedule_space(kernel, target, 1, INT8_ACTIVATIONS).sketches[0]
        assert (first.algorithm is Algorithm.ROUNDED_DATA) == bool(fast)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_reference_of_rounded_data_is_what_the_schedule_computes(bits: int) -> None:
    product = Product(7, 64, 3, 64, bits, zero=True)
    kernels = with_rounded_data(product.kernel), apply_limb_dot(product.kernel, 1)
    floats, integers = (
        evaluate_kernel(kernel, product.inputs).astype(np.float64) for kernel in kernels
    )
    np.testing.assert_allclose(integers, floats, rtol=0, atol=2e-6 * np.abs(floats).max())
    exact = product.rounded() @ product.weights()
    np.testing.assert_allclose(floats, exact, rtol=0, atol=2e-6 * np.abs(exact).max())


def test_data_has_one_digit_or_three() -> None:
    with pytest.raises(ScheduleError, match="1 or 3 digits, not 2"):
        apply_limb_dot(Product(1, 64, 1, 32).kernel, 2)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_decoder_rounds_prompts_of_every_length(threads: int) -> None:
    """One build for a range of lengths: near f32, and each row as a build for its length has it."""
    sizes = Sizes(heads=4, width=32, hidden=192, words=193, block=32)
    proto = decoder("gqa", sizes)
    ranges: dict[str, tuple[int | str, ...]] = {
        "batch_size": (1,),
        "sequence_length": ("1|2..70",),
        "past_sequence_length": ("0..8",),
        "total_sequence_length": ("1..78",),
    }
    graph = import_model_proto(proto, shapes=ranges)
    exact = exact_session(proto)
    rounded = build(graph, threads=threads, precision="int8-activations")
    marked = [str(Algorithm.ROUNDED_DATA) in kernel.numerics for kernel in rounded.kernels]
    assert any(marked) == bool({"avx2", "dotprod"} & set(host_target().features))
    rng = np.random.default_rng(2)
    tokens = rng.integers(0, 193, (1, 70))
    logits = {}
    for length in (1, 2, 7, 33, 70):
        inputs = {
            "input_ids": tokens[:, :length],
            "attention_mask": np.ones((1, length), np.int64),
            "position_ids": np.arange(length)[None],
        }
        for layer in range(sizes.layers):
            for kind in ("key", "value"):
                inputs[f"past_key_values.{layer}.{kind}"] = np.zeros((1, 2, 0, 32), np.float32)
        logits[length] = rounded.run(inputs)["logits"]
        given = {port.name: inputs[port.name] for port in exact.get_inputs()}
        (expected,) = exact.run(["logits"], given)
        assert np.abs(logits[length] - expected).max() <= 0.05 * np.abs(expected).max()
    for length in (2, 7, 33):
        longer = logits[70][:, :length]
        assert np.abs(logits[length] - longer).max() <= 0.02 * np.abs(longer).max()


@pytest.mark.parametrize(("blocks", "streams"), [(4, ["in1", "in2"]), (1, ["in1"])])
def test_weights_and_scales_of_several_blocks_are_asked_for_ahead(
    blocks: int, streams: list[str]
) -> None:
    made = Product(1, 64, blocks, 128 // blocks)
    space = schedule_space(made.kernel, x86("avx512vnni"))
    assert space.default().sketch == "digits"
    schedule = space.schedule(space.default())
    found = [step.buffer for step in schedule.steps if isinstance(step, Prefetch)]
    assert found == streams
