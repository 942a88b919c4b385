"""Runs of a built model: sizes, inputs from files and random ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.compiler.frontend.onnx_models import model, node, tensor
from tests.compiler.graph.graph_helpers import GraphMaker
from tests.compiler.runtime.sized_graphs import cache_graph, rows_graph, taken_graph
from tunefarm import compiler
from tunefarm.compiler.errors import InputError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.types.extents import Given
from tunefarm.tuner.commands.run_model import run_model, sizes_of
from tunefarm.tuner.confirm.drawn_inputs import drawn_inputs


@pytest.fixture(scope="module")
def rows() -> Executable:
    return compiler.build(rows_graph())


def test_sizes_come_from_files_then_options_then_the_middle(rows: Executable) -> None:
    assert sizes_of(rows, {}, {}) == {"batch": 3, "length": 4}
    assert sizes_of(rows, {}, {"length": (0,)}) == {"length": 0, "batch": 3}
    assert sizes_of(rows, {}, {"x": (1, 2, 5)}) == {"batch": 1, "length": 2}
    assert sizes_of(rows, {"x": (4, 7, 5)}, {}) == {"batch": 4, "length": 7}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch": (5,)}, r"batch = 5 is out of its bounds, 1 to 4 \(axis 0 of input 'x'\)"),
        ({"bach": (2,)}, r"no size 'bach'.*did you mean 'batch'"),
        ({"y": (2, 3)}, "no input 'y', and a size of that name is one number"),
        ({"x": (2, 3, 6)}, r"cannot have the shape \[2, 3, 6\].*which is f32\[2, 3, 5\] where"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    rows: Executable, given: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        sizes_of(rows, {}, given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"p": (1,), "q": (5,)}, "p and q must be equal, and are not where p = 1, q = 5"),
        ({"p": (1,)}, "q = 1 is out of its bounds, 2 to 8, as p and q must be equal"),
    ],
)
def test_sizes_that_cannot_be_together_say_why_and_which_can(
    given: dict[str, tuple[int, ...]], message: str
) -> None:
    sum_ = model([node("Add", "a b")], [tensor("a", ["p"]), tensor("b", ["q"])])
    shapes: dict[str, list[Given]] = {"p": ["1..4"], "q": ["2..8"]}
    executable = compiler.build(import_model_proto(sum_, shapes))
    with pytest.raises(InputError, match=message) as caught:
        sizes_of(executable, {}, given)
    if len(given) == 2:
        assert caught.value.hint == "give sizes that fit, for example --shape p=3 --shape q=3"


def test_sizes_beside_files_of_other_sizes_are_refused(rows: Executable) -> None:
    file = {"x": (4, 7, 5)}
    assert sizes_of(rows, file, {"batch": (4,), "x": (4, 7, 5)}) == {"batch": 4, "length": 7}
    with pytest.raises(InputError, match="--shape batch=3 is not what --input says: batch=4"):
        sizes_of(rows, file, {"batch": (3,)})
    with pytest.raises(InputError, match="--shape x=4,6,5 is not what --input says: x=4,7,5"):
        sizes_of(rows, file, {"x": (4, 6, 5)})


def test_fixed_shapes_can_only_be_said_again() -> None:
    maker = GraphMaker()
    fixed = compiler.build(maker.graph(maker.node("relu", maker.input(2, 3))))
    assert sizes_of(fixed, {}, {"x0": (2, 3)}) == {}
    with pytest.raises(InputError, match=r"built for f32\[2, 3\]"):
        sizes_of(fixed, {}, {"x0": (1, 3)})
    with pytest.raises(InputError, match="no input 'batch'"):
        sizes_of(fixed, {}, {"batch": (1,)})


def test_a_size_chooses_among_programs() -> None:
    specs = []
    for rows in (1, 4):
        maker = GraphMaker()
        graph = maker.graph(maker.node("relu", maker.input(rows, 3)))
        guard = SizeGuard("batch", "x0", 0, rows, rows)
        specs.append(compile_model(graph, guards=[guard]).spec)
    several = Executable(specs[0], others=specs[1:])
    for rows in (1, 4):
        outputs, result = run_model(several, {}, shapes={"batch": (rows,)})
        assert [array.shape for array in outputs.values()] == [(rows, 3)]
        assert result.sizes == f"batch={rows}"
    with pytest.raises(InputError, match=r"batch = 3 is none of the sizes .* built for: 1\|4"):
        run_model(several, {}, shapes={"batch": (3,)})
    with pytest.raises(InputError, match=r"no size 'bach'.*did you mean 'batch'"):
        run_model(several, {}, shapes={"bach": (1,)})


def test_run_says_the_sizes_and_types_that_it_ran_at(rows: Executable, tmp_path: Path) -> None:
    outputs, result = run_model(rows, {}, shapes={"length": (2,)})
    assert [array.shape for array in outputs.values()] == [(3, 2, 5), (3, 5)]
    assert list(result.outputs.values()) == ["f32[3, 2, 5]", "f32[3, 5]"]
    assert result.sizes == "length=2, batch=3"
    assert result.to_json()["symbols"] == {"length": 2, "batch": 3}
    np.save(tmp_path / "x.npy", np.ones((4, 1, 5), np.float32))
    outputs, result = run_model(rows, {"x": str(tmp_path / "x.npy")}, profile=True, repeat=1)
    np.testing.assert_array_equal(list(outputs.values())[1], np.ones((4, 5)))


def test_drawn_arguments_say_the_sizes_that_they_are_asked_for() -> None:
    model = compiler.build(taken_graph())
    inputs = drawn_inputs(model, 0, {"count": 4})
    assert inputs["count"][1] == 4
    assert [array.shape for array in model.run(inputs).values()] == [(), (4,)]
    assert drawn_inputs(compiler.build(cache_graph()))["past"].shape == (2, 15, 4)


def test_inputs_may_be_numbers_in_place_of_files(tmp_path: Path) -> None:
    model = compiler.build(taken_graph())
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32))
    given = {"x": str(tmp_path / "x.npy"), "count": "[0, 4]"}
    assert [len(array) for array in run_model(model, given)[0].values() if array.ndim] == [4]
    outputs, _ = run_model(model, given | {"x": "[0, 1, 2, 3, 4, 5]"})
    np.testing.assert_array_equal(list(outputs.values())[-1], [0, 1, 2, 3])
    with pytest.raises(InputError, match=r"\[0, 1.5\] is no value of i64"):
        run_model(model, given | {"count": "[0, 1.5]"})
    with pytest.raises(InputError, match="cannot read four: No such file"):
        run_model(model, given | {"count": "four"})
