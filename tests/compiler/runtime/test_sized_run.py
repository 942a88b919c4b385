"""Models with run-time sizes: results at drawn sizes, what is copied, shared, kept and refused.

Arguments end at guard pages, and padded places are poisoned: code that reads what is not there
crashes or gives NaN, which sums would show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.runtime.edited_artefacts import rewrite_manifest
from tests.compiler.runtime.sized_graphs import (
    BATCH,
    LENGTH,
    WIDTH,
    cache_graph,
    counted_graph,
    joined_graph,
    rows_graph,
    taken_graph,
)
from tunefarm import compiler
from tunefarm.compiler.errors import ArtefactError, InputError
from tunefarm.compiler.runtime.artefact import file_header
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.buffers import address_of
from tunefarm.measure.sandbox.guarded import GuardedBuffer

Floats = npt.NDArray[np.float32]
RNG = np.random.default_rng(3)


def drawn(*shape: int) -> Floats:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def rows() -> Executable:
    return compiler.build(rows_graph())


@contextmanager
def at_guard_page(array: Floats) -> Iterator[Floats]:
    """A copy of an array that ends where a page begins that nobody may read."""
    with GuardedBuffer(max(1, array.nbytes)) as buffer:
        place = buffer.bytes[buffer.bytes.nbytes - array.nbytes :]
        copy = place[: array.nbytes].view(np.float32).reshape(array.shape)
        copy[...] = array
        yield copy
        assert not buffer.damage()


def check_rows(outputs: Mapping[str, Floats], x: Floats) -> None:
    relu, total = outputs.values()
    np.testing.assert_array_equal(relu, np.maximum(x, 0))
    np.testing.assert_allclose(total, x.sum(1), rtol=1e-5, atol=1e-6)


SIZES = st.tuples(st.integers(1, BATCH), st.integers(0, LENGTH))


@settings(max_examples=40, deadline=None)
@given(SIZES, st.booleans(), st.booleans())
def test_results_are_right_at_every_size(
    rows: Executable, sizes: tuple[int, int], strided: bool, into: bool
) -> None:
    x = drawn(*sizes, WIDTH)
    with ExitStack() as stack:
        given_x = (
            np.repeat(x, 2, axis=2)[:, :, ::2] if strided else stack.enter_context(at_guard_page(x))
        )
        out = None
        if into:
            names = list(rows.outputs)
            arrays = (np.empty_like(x), np.empty((sizes[0], WIDTH), np.float32))
            out = {
                n: stack.enter_context(at_guard_page(a)) for n, a in zip(names, arrays, strict=True)
            }
        outputs = rows.run({"x": given_x}, out)
        check_rows(outputs, x)
        assert out is None or all(outputs[name] is array for name, array in out.items())


def test_results_are_arrays_of_their_own(rows: Executable) -> None:
    x = drawn(3, 5, WIDTH)
    first = rows.run({"x": x})
    kept = {name: array.copy() for name, array in first.items()}
    rows.run({"x": drawn(3, 5, WIDTH)})
    rows.run({"x": drawn(4, 7, WIDTH)})
    for name, array in first.items():
        np.testing.assert_array_equal(array, kept[name])
        assert array.flags.c_contiguous


def test_part_of_a_larger_array_is_read_where_it_is(rows: Executable) -> None:
    whole = np.full((BATCH, LENGTH, WIDTH), np.nan, np.float32)
    part = whole[:2, :3]
    part[...] = drawn(2, 3, WIDTH)
    frame = rows.new_frame()
    (array,) = frame.bind_inputs({"x": part})
    assert frame.inputs[0] == address_of(whole)
    check_rows(rows.run({"x": part}), array)
    assert np.isnan(whole[2:]).all()
    at_end = np.full((BATCH, LENGTH, WIDTH), np.nan, np.float32)[2:, :3]  # no memory behind it
    frame.bind_inputs({"x": at_end})
    assert frame.inputs[0] != address_of(at_end)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5, 2, 5), r"batch is 5 in axis 0 of input 'x'.*1 to 4 \(build.*batch:1\.\.5"),
        ((0, 2, 5), r"batch is 0 in axis 0 of input 'x'.*1 to 4 \(build.*batch:0\.\.4"),
        ((1, 8, 5), "length is 8 in axis 1 of input 'x'.*0 to 7"),
        ((1, 2, 6), r"shape \[1, 2, 6\] and must have \[1, 2, 5\].*length is 2 in axis 1"),
        ((2, 5), r"shape \[2, 5\].*built for f32\[batch:1\.\.4, length:0\.\.7, 5\]"),
        ((1, 1, 1, 1), r"shape \[1, 1, 1, 1\]"),
    ],
)
def test_sizes_that_the_model_was_not_built_for_are_refused(
    rows: Executable, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        rows.run({"x": drawn(*shape)})
    x = drawn(2, 2, WIDTH)
    check_rows(rows.run({"x": x}), x)


def test_out_of_another_size_is_refused(rows: Executable) -> None:
    name = list(rows.outputs)[1]
    with pytest.raises(InputError, match=r"output .* must have \[2, 5\] \(batch is 2"):
        rows.run({"x": drawn(2, 2, WIDTH)}, {name: np.empty((4, 5), np.float32)})


def test_bound_arrays_are_run_again_and_again(rows: Executable) -> None:
    x = drawn(2, 3, WIDTH)
    bound = rows.bind({"x": x})
    for _ in range(3):
        x[...] = drawn(2, 3, WIDTH)
        bound.run()
        check_rows(bound.outputs, x)
    with pytest.raises(InputError, match="cannot be read in place"):
        rows.bind({"x": drawn(2, 6, WIDTH)[:, ::2]})


def test_calls_of_different_sizes_run_at_once(rows: Executable) -> None:
    def run(number: int) -> None:
        rng = np.random.default_rng(number)
        x = rng.standard_normal((1 + number % 4, number % 8, WIDTH), np.float32)
        for _ in range(50):
            check_rows(rows.run({"x": x}), x)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run, range(8)))
    assert rows.idle_frames <= 5


def test_profile_runs_the_steps_at_the_sizes_of_the_arguments(rows: Executable) -> None:
    x = drawn(3, 4, WIDTH)
    profile = rows.profile({"x": x}, repeat=2)
    check_rows(profile.outputs, x)
    assert len(profile.steps) == len(rows.spec.steps)


def test_axis_with_padding_inside_comes_out_dense() -> None:
    model = compiler.build(joined_graph())
    for sizes in ((1, 0), (2, 3), (4, 7), (3, 1)):
        x = drawn(*sizes, WIDTH)
        (found,) = model.run({"x": x}).values()
        np.testing.assert_array_equal(found, np.maximum(x, 0).reshape(-1, WIDTH))


def test_integer_arguments_say_sizes_and_must_fit() -> None:
    model = compiler.build(taken_graph())
    x = drawn(6)
    for count in (0, 4, 6):
        total, part = model.run({"x": x, "count": np.array([9, count])}).values()
        np.testing.assert_allclose(total, x[:count].sum(), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(part, np.maximum(x[:count], 0))
    with pytest.raises(InputError, match=r"count is 7 in element 1 of input 'count'.*0 to 6"):
        model.run({"x": x, "count": np.array([9, 7])})
    with pytest.raises(
        InputError, match=r"is 2 and .*is 3, and they must be equal.*count = 5.*: they are halves"
    ):
        model.run({"x": x, "count": np.array([9, 5])})


def test_sizes_that_are_computed_are_known_after_the_run() -> None:
    model = compiler.build(counted_graph())
    for count in (0, 3, 7):
        (found,) = model.run({"x": np.full(8, 2.0, np.float32), "n": np.array([count])}).values()
        np.testing.assert_array_equal(found, np.full((2, count), 2.0))
    with pytest.raises(InputError, match=r"computed the size found = 8.*0 to 7"):
        model.run({"x": drawn(8), "n": np.array([8])})
    with pytest.raises(InputError, match=r"input 'n' is \[-1\]: it must not be negative"):
        model.run({"x": drawn(8), "n": np.array([-1])})
    with pytest.raises(InputError, match="known after the run"):
        model.run({"x": drawn(8), "n": np.array([1])}, {next(iter(model.outputs)): drawn(2, 1)})
    with pytest.raises(InputError, match="cannot be bound"):
        model.bind({"x": drawn(8), "n": np.array([1])})


def test_cache_that_grows_is_neither_copied_nor_allocated() -> None:
    model = compiler.build(cache_graph())
    made: list[int] = []
    past = np.empty((2, 0, 4), np.float32)
    expected = past
    frame = model.new_frame()
    for step in range(31):
        new = drawn(2, 1, 4)
        outputs = model.run_in(frame, {"past": past, "new": new})
        expected = np.concatenate([expected, new], axis=1)
        np.testing.assert_array_equal(outputs["present"], expected)
        np.testing.assert_allclose(outputs["total"], expected.sum(1), rtol=1e-4, atol=1e-5)
        if step:
            assert frame.inputs[0] == address_of(past)  # in place: what the last step returned
        past = outputs["present"]
        made.append(address_of(past))
    assert len(set(made)) <= 3
    with pytest.raises(InputError, match="past is 31 in axis 1"):
        model.run({"past": expected, "new": drawn(2, 1, 4)})


def test_cache_that_somebody_has_is_not_written_again() -> None:
    model = compiler.build(cache_graph())
    past, kept = np.empty((2, 0, 4), np.float32), []
    for _ in range(9):
        past = model.run({"past": past, "new": drawn(2, 1, 4)})["present"]
        kept.append((past[:, -1:], past[:, -1:].copy()))
    for part, copy in kept:
        np.testing.assert_array_equal(part, copy)


def test_saved_model_has_its_signature(rows: Executable, tmp_path: Path) -> None:
    rows.save(tmp_path / "rows.tuned")
    loaded = compiler.load(tmp_path / "rows.tuned")
    assert loaded.signature == rows.signature
    assert (tmp_path / "rows.tuned").read_bytes()[8] == file_header.PROGRAMS
    assert "x: f32[batch:1..4, length:0..7, 5]" in repr(loaded)
    x = drawn(2, 3, WIDTH)
    check_rows(loaded.run({"x": x}), x)


def test_signature_that_was_changed_is_refused(rows: Executable, tmp_path: Path) -> None:
    path = tmp_path / "rows.tuned"
    rows.save(path)

    def widen(manifest: dict[str, Any]) -> None:
        manifest["variants"][0]["signature"]["symbols"]["batch"] = [1, 5]

    rewrite_manifest(path, widen)
    with pytest.raises(ArtefactError, match="its manifest and its code differ"):
        compiler.load(path)


def test_inputs_at_chosen_sizes(rows: Executable) -> None:
    assert str(rows.inputs_at({"length": 2})["x"]) == "f32[3, 2, 5]"
    assert rows.empty_inputs({"batch": 1, "length": 7})["x"].shape == (1, 7, WIDTH)
    assert str(rows.inputs["x"]) == "f32[4, 7, 5]"
    with pytest.raises(InputError, match=r"no size 'lenght'.*did you mean 'length'"):
        rows.inputs_at({"lenght": 2})
    with pytest.raises(InputError, match="length = 9 is out of its bounds, 0 to 7"):
        rows.inputs_at({"length": 9})
