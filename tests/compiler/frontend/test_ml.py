"""Operators of ai.onnx.ml, against onnxruntime: trees, linear models, preparation of features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.compiler.frontend.onnx_models import model, outputs_of, tensor, untyped
from tests.onnxruntime_session import exact_session
from tunefarm import compiler
from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.operators.forests import FEW_ROWS
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.types.tensor_type import Array

DOMAIN = "ai.onnx.ml"
Evaluate = Callable[[Any, Mapping[str, Array]], list[Any]]
ROWS, WIDTH = 37, 5


def _model(
    operator: str, inputs: Mapping[str, Array], outputs: int, version: int, **attributes: Any
) -> Any:
    names = [f"y{number}" for number in range(outputs)]
    node = helper.make_node(operator, list(inputs), names, domain=DOMAIN, **attributes)
    return model([node], inputs, [untyped(name) for name in names], domains={DOMAIN: version})


def _expected(model: Any, inputs: Mapping[str, Array]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = exact_session(model, options)
    return list(session.run(None, dict(inputs)))


def _check(
    operator: str,
    inputs: Mapping[str, Array],
    outputs: int = 1,
    version: int = 3,
    evaluate: Evaluate = outputs_of,
    **attributes: Any,
) -> None:
    model = _model(operator, inputs, outputs, version, **attributes)
    found = evaluate(import_model_proto(model), inputs)
    for own, wanted in zip(found, _expected(model, inputs), strict=True):
        assert own.dtype == wanted.dtype
        wanted = wanted.reshape(own.shape)
        np.testing.assert_allclose(own, wanted, rtol=2e-4, atol=2e-5)


def _compiled(graph: Any, inputs: Mapping[str, Array]) -> list[Any]:
    return list(compiler.build(graph).run(dict(inputs)).values())


def _data(dtype: str = "float32", seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return np.round(rng.standard_normal((ROWS, WIDTH)) * 2, 1).astype(dtype)


# --- trees --------------------------------------------------------------------------------------


def _forest(
    trees: int,
    depth: int,
    modes: tuple[str, ...],
    votes: str,
    targets: int,
    low: float,
    seed: int = 0,
) -> dict[str, Any]:
    """Random trees in the old form, whose nodes end at random depths."""
    rng = np.random.default_rng(seed)
    lists: dict[str, list[Any]] = {
        name: []
        for name in "treeids nodeids featureids values modes truenodeids falsenodeids "
        "missing_value_tracks_true".split()
    }
    leaves: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}

    def grow(tree: int, level: int) -> int:
        own, nodes[tree] = nodes[tree], nodes[tree] + 1
        is_leaf = level == depth or (level > 0 and rng.random() < 0.2)
        place = len(lists["treeids"])
        row = (
            tree,
            own,
            0 if is_leaf else int(rng.integers(WIDTH)),
            0.0 if is_leaf else float(np.round(rng.standard_normal(), 1)),
            "LEAF" if is_leaf else str(rng.choice(modes)),
            0,
            0,
            int(rng.integers(2)),
        )
        for items, value in zip(lists.values(), row, strict=True):
            items.append(value)
        if is_leaf:
            target = int(rng.integers(targets))
            vote = (tree, own, target, float(rng.uniform(low, 1)))
            for items, value in zip(leaves.values(), vote, strict=True):
                items.append(value)
            return own
        lists["truenodeids"][place] = grow(tree, level + 1)
        lists["falsenodeids"][place] = grow(tree, level + 1)
        return own

    nodes = [0] * trees
    for tree in range(trees):
        grow(tree, 0)
    columns = {f"nodes_{name}": items for name, items in lists.items()}
    return columns | {f"{votes}_{name}": items for name, items in leaves.items()}


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_tree_regressors_agree_with_onnxruntime(aggregate: str) -> None:
    forest = _forest(7, 5, ("BRANCH_LEQ", "BRANCH_LT"), "target", 1, -1)
    given: dict[str, Any] = {"n_targets": 1, "aggregate_function": aggregate, "base_values": [0.5]}
    _check("TreeEnsembleRegressor", {"x": _data()}, evaluate=_compiled, **forest, **given)


@pytest.mark.parametrize("depth", [4, 10])
@pytest.mark.parametrize("mode", ["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"])
def test_nodes_compare_as_their_modes_say_and_nan_is_what_is_missing(mode: str, depth: int) -> None:
    data = _data()
    data[::5, ::2] = np.nan
    forest = _forest(4, depth, (f"BRANCH_{mode}",), "target", 3, -1, seed=1)
    _check("TreeEnsembleRegressor", {"x": data}, n_targets=3, **forest)


def test_zero_is_told_from_what_is_below_it_where_denormal_numbers_are_flushed() -> None:
    for dtype, depth in (("float32", 4), ("float32", 10), ("float64", 4)):
        column = np.array([[0.0], [-0.0], [1.0], [-1.0], [3.0]], dtype)
        for mode in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ"):
            forest = _forest(2, depth, (f"BRANCH_{mode}",), "target", 3, -1, seed=1)
            forest["nodes_values"] = [0.0] * len(forest["nodes_values"])
            data = {"x": column.repeat(WIDTH, 1)}
            _check("TreeEnsembleRegressor", data, n_targets=3, evaluate=_compiled, **forest)


def test_doubles_and_integers_walk_trees() -> None:
    forest = _forest(4, 4, ("BRANCH_LEQ", "BRANCH_GT"), "target", 2, -1)
    _check("TreeEnsembleRegressor", {"x": _data("float64")}, n_targets=2, **forest)
    for dtype in ("int64", "int32"):
        inputs, floats = ({"x": _data(dtype).astype(kind)} for kind in (dtype, "float32"))
        found, wanted = (
            outputs_of(import_model_proto(model), given)
            for given in (inputs, floats)
            for model in [_model("TreeEnsembleRegressor", given, 1, 3, n_targets=2, **forest)]
        )
        np.testing.assert_array_equal(found[0], wanted[0])


def _by_leaves(
    trees: int, leaves: int, targets: int, seed: int, of_one: bool = False
) -> dict[str, Any]:
    """Trees that grow at a leaf at a time, mostly at the latest one: few leaves, many levels.

    All leaves of a tree are `of_one` target, or each of any.
    """
    rng = np.random.default_rng(seed)
    nodes: list[list[Any]] = []
    votes: list[list[Any]] = []
    for tree in range(trees):
        own: list[list[Any]] = [[0, 0.0, "LEAF", 0, 0, 0]]
        open_leaves = [0]
        for _ in range(int(rng.integers(1, leaves + 1)) - 1):
            at = -1 if rng.random() < 0.7 else int(rng.integers(len(open_leaves)))
            node, count = open_leaves.pop(at), len(own)
            threshold = float(np.round(rng.standard_normal() * 2, 1))
            missing = int(rng.integers(2))
            own[node] = [
                int(rng.integers(WIDTH)),
                threshold,
                "BRANCH_LEQ",
                count,
                count + 1,
                missing,
            ]
            own += [[0, 0.0, "LEAF", 0, 0, 0] for _ in range(2)]
            open_leaves += [count, count + 1] if rng.random() < 0.5 else [count + 1, count]
        nodes += [[tree, number, *values] for number, values in enumerate(own)]
        chosen = rng.integers(targets, size=len(open_leaves))
        chosen[:] = chosen[0] if of_one else chosen
        votes += [
            [tree, leaf, int(target), float(rng.uniform(-1, 1))]
            for leaf, target in zip(open_leaves, chosen, strict=True)
        ]
    names = "treeids nodeids featureids values modes truenodeids falsenodeids"
    columns = zip(
        f"{names} missing_value_tracks_true".split(), zip(*nodes, strict=True), strict=True
    )
    found = {f"nodes_{name}": list(values) for name, values in columns}
    votes_by = zip("treeids nodeids ids weights".split(), zip(*votes, strict=True), strict=True)
    return found | {f"target_{name}": list(values) for name, values in votes_by}


@given(
    trees=st.integers(1, 30),
    leaves=st.sampled_from([1, 2, 31, 32, 33, 90]),
    targets=st.sampled_from([1, 3]),
    rows=st.sampled_from([1, 2, 37]),
    dtype=st.sampled_from(["float32", "float64"]),
    aggregate=st.sampled_from(["SUM", "AVERAGE", "MIN", "MAX"]),
    of_one=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=14, deadline=None)
def test_trees_grown_by_leaves_agree_with_onnxruntime(
    trees: int,
    leaves: int,
    targets: int,
    rows: int,
    dtype: str,
    aggregate: str,
    of_one: bool,
    seed: int,
) -> None:
    data = _data(dtype, seed)[:rows]
    data[::3, ::2] = np.nan
    if targets > 1 and aggregate in ("MIN", "MAX"):
        aggregate = "SUM"  # of targets that no tree votes for onnxruntime has no least vote
    forest = _by_leaves(trees, leaves, targets, seed, of_one)
    given = {"n_targets": targets, "aggregate_function": aggregate, **forest}
    _check("TreeEnsembleRegressor", {"x": data}, evaluate=_compiled, **given)


@pytest.mark.parametrize("is_sized", [False, True])
@pytest.mark.parametrize(("depth", "leaves"), [(0, 3), (0, 40), (9, 0)])
def test_trees_of_one_target_each_look_one_weight_up(
    depth: int, leaves: int, is_sized: bool
) -> None:
    """A leaf's weights are no row of all targets' then, most of which are 0."""
    forest = _by_leaves(22, leaves, 5, 0, of_one=True) if leaves else _walked_down(depth)
    data = _data()
    model = _model("TreeEnsembleRegressor", {"x": data}, 1, 3, n_targets=5, **forest)
    if is_sized:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    graph = import_model_proto(model, {"rows": (f"1..{len(data)}",)} if is_sized else None)
    gathers = [node for node in graph.nodes if node.operator == "gather"]
    assert gathers
    assert all(len(graph.types[gather.inputs[0]].shape) == 1 for gather in gathers)
    executable = compiler.build(graph)
    for rows in (1, 3, len(data)) if is_sized else (len(data),):
        part = {"x": data[:rows]}
        (found,) = executable.run(part).values()
        np.testing.assert_allclose(found, _expected(model, part)[0], rtol=1e-4, atol=1e-5)


def _walked_down(depth: int) -> dict[str, Any]:
    """Deep trees, each of which votes for one of five targets."""
    forest = _forest(20, depth, ("BRANCH_LEQ",), "target", 1, -1)
    return forest | {"target_ids": [tree % 5 for tree in forest["target_treeids"]]}


@pytest.mark.parametrize(("rows", "by_rows"), [(37, False), (1, True)])
def test_nodes_of_unbalanced_trees_are_asked_at_once(rows: int, by_rows: bool) -> None:
    forest = _by_leaves(20, 31, 1, 0)
    model = _model("TreeEnsembleRegressor", {"x": _data()[:rows]}, 1, 3, n_targets=1, **forest)
    trees = [node for node in import_model_proto(model).nodes if node.operator.startswith("tree_")]
    assert [node.operator for node in trees] == ["tree_leaves"]
    assert complete_attributes(trees[0]).flag("by_rows") == by_rows


@pytest.mark.parametrize(("rows", "pieces"), [(1, 12), (7, 12), (37, 24)])
def test_nodes_that_test_the_same_are_asked_once(rows: int, pieces: int) -> None:
    """Trees of CatBoost have one test a level, and 64 leaves, which many rows ask in two pieces."""
    forest, data = _symmetric(12, 6), _data()[:rows]
    data[::3, ::2] = np.nan
    model = _model("TreeEnsembleRegressor", {"x": data}, 1, 3, n_targets=1, **forest)
    graph = import_model_proto(model)
    (asked,) = (node for node in graph.nodes if node.operator == "tree_leaves")
    assert sorted(graph.types[asked.inputs[1]].shape) == [6, pieces]
    _check("TreeEnsembleRegressor", {"x": data}, n_targets=1, evaluate=_compiled, **forest)


def _symmetric(trees: int, depth: int) -> dict[str, Any]:
    """Full trees, all nodes of whose levels test the same."""
    rng = np.random.default_rng(0)
    nodes: list[tuple[Any, ...]] = []
    votes: list[tuple[Any, ...]] = []
    for tree in range(trees):
        tests = [(int(rng.integers(WIDTH)), float(rng.standard_normal())) for _ in range(depth)]
        for node in range(2 ** (depth + 1) - 1):
            level = (node + 1).bit_length() - 1
            is_leaf = level == depth
            test = (0, 0.0, "LEAF", 0, 0) if is_leaf else (*tests[level], "BRANCH_GT")
            children = () if is_leaf else (2 * node + 1, 2 * node + 2)
            nodes.append((tree, node, *test, *children, level % 2))
            votes += [(tree, node, 0, float(rng.standard_normal()))] if is_leaf else []
    names = "treeids nodeids featureids values modes truenodeids falsenodeids"
    names += " missing_value_tracks_true"
    columns = zip(names.split(), zip(*nodes, strict=True), strict=True)
    found = {f"nodes_{name}": list(values) for name, values in columns}
    votes_by = zip("treeids nodeids ids weights".split(), zip(*votes, strict=True), strict=True)
    return found | {f"target_{name}": list(values) for name, values in votes_by}


def _with_categories(forest: dict[str, Any], most: int, lead_apart: bool) -> dict[str, Any]:
    """The forest with a chain of nodes that ask for one value each in place of every second node.

    They lead to one child, or with `lead_apart` the second of them to the other one.
    """
    rng = np.random.default_rng(5)
    nodes = {key: list(values) for key, values in forest.items() if key.startswith("nodes_")}
    inner = [n for n, mode in enumerate(nodes["nodes_modes"]) if mode != "LEAF"]
    for node in inner[::2]:
        last, tree = node, nodes["nodes_treeids"][node]
        true, false = nodes["nodes_truenodeids"][node], nodes["nodes_falsenodeids"][node]
        values = rng.choice(most, int(rng.integers(1, 5)), replace=False).tolist()
        nodes["nodes_modes"][node], nodes["nodes_values"][node] = "BRANCH_EQ", float(values[0])
        for number, value in enumerate(values[1:]):
            own = 1 + max(n for t, n in _pairs(nodes) if t == tree)
            nodes["nodes_falsenodeids"][last], last = own, len(nodes["nodes_treeids"])
            leads = false if lead_apart and number == 0 else true
            row = {"treeids": tree, "nodeids": own, "values": float(value), "modes": "BRANCH_EQ"}
            row |= {"truenodeids": leads, "falsenodeids": false}
            row |= {"missing_value_tracks_true": int(rng.integers(2))}
            row |= {"featureids": nodes["nodes_featureids"][node]}
            for key, item in row.items():
                nodes[f"nodes_{key}"].append(item)
    return forest | nodes


def _walked(forest: Mapping[str, Any], data: Array) -> Any:
    """What the trees vote for each row; onnxruntime refuses most nodes of several ways."""
    place = {pair: number for number, pair in enumerate(_pairs(forest))}
    votes = dict(
        zip(
            zip(forest["target_treeids"], forest["target_nodeids"], strict=True),
            forest["target_weights"],
            strict=True,
        )
    )
    totals = np.zeros((len(data), 1))
    for row, values in enumerate(data):
        for tree in set(forest["nodes_treeids"]):
            own = 0
            while (mode := forest["nodes_modes"][at := place[tree, own]]) != "LEAF":
                value, wanted = values[forest["nodes_featureids"][at]], forest["nodes_values"][at]
                is_true = value <= wanted if mode == "BRANCH_LEQ" else value == wanted
                if np.isnan(value):
                    is_true = bool(forest["nodes_missing_value_tracks_true"][at])
                own = forest["nodes_truenodeids" if is_true else "nodes_falsenodeids"][at]
            totals[row] += votes[tree, own]
    return totals.astype(np.float32)


def _pairs(nodes: Mapping[str, Any]) -> list[tuple[int, int]]:
    return list(zip(nodes["nodes_treeids"], nodes["nodes_nodeids"], strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("lead_apart", [False, True])
@pytest.mark.parametrize(("most", "operator"), [(9, "tree_leaves"), (9000, "tree_step")])
def test_sets_of_categories_are_looked_up(
    dtype: str, lead_apart: bool, most: int, operator: str
) -> None:
    """Whether a feature is one of them is a column of its own, and trees are as without sets."""
    chained = _with_categories(_forest(9, 4, ("BRANCH_LEQ",), "target", 1, -1), most, lead_apart)
    data = np.random.default_rng(2).integers(-1, 11, (ROWS, WIDTH)).astype(dtype)
    strange = [np.nan, np.inf, -np.inf, -0.0, 0.5, 4e9, -3e9, most - 0.5]
    for row, value in enumerate(strange):
        data[row, :] = value
    model = _model("TreeEnsembleRegressor", {"x": data}, 1, 3, n_targets=1, **chained)
    graph = import_model_proto(model)
    if not lead_apart:
        assert operator in [node.operator for node in graph.nodes]
    (found,) = _compiled(graph, {"x": data})
    np.testing.assert_allclose(found, _walked(chained, data), rtol=1e-5, atol=1e-5)


def test_tree_with_several_ways_to_a_node_is_walked() -> None:
    forest = _by_leaves(4, 9, 1, 0)
    ends = forest["nodes_falsenodeids"]
    both = next(n for n, mode in enumerate(forest["nodes_modes"]) if mode != "LEAF")
    ends[both] = forest["nodes_truenodeids"][both]
    inputs = {"x": _data()}
    model = _model("TreeEnsembleRegressor", inputs, 1, 3, n_targets=1, **forest)
    assert "tree_step" in [node.operator for node in import_model_proto(model).nodes]
    _check("TreeEnsembleRegressor", inputs, n_targets=1, evaluate=_compiled, **forest)


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("trees", [4, 20])
@pytest.mark.parametrize(("depth", "operator"), [(5, "tree_leaves"), (14, "tree_step")])
def test_rows_of_any_number_take_vectors_of_many_trees(
    depth: int, operator: str, trees: int, targets: int
) -> None:
    """One row of many trees costs no vector of rows for each of them; many rows of them are vectors
    where all nodes are asked at once."""
    forest = _forest(trees, depth, ("BRANCH_LEQ",), "target", targets, -1)
    data = _data()
    model = _model("TreeEnsembleRegressor", {"x": data}, 1, 3, n_targets=targets, **forest)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    graph = import_model_proto(model, {"rows": (f"1..{len(data)}",)})
    nodes = [node for node in graph.nodes if node.operator.startswith("tree_")]
    kinds = {(node.operator, complete_attributes(node).flag("by_rows")) for node in nodes}
    both = trees > 4 and operator == "tree_leaves"
    assert kinds == {(operator, trees > 4), (operator, trees > 4 and not both)}
    executable = compiler.build(graph)
    for rows in (1, len(data), FEW_ROWS - 1, FEW_ROWS):
        part = {"x": data[:rows]}
        (found,) = executable.run(part).values()
        np.testing.assert_allclose(found, _expected(model, part)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("low", [0.0, -1.0])
@pytest.mark.parametrize("classes", [2, 4])
def test_tree_classifiers_agree_with_onnxruntime(classes: int, low: float, transform: str) -> None:
    targets = 1 if classes == 2 else classes
    # so many trees that each class has votes for each row: onnxruntime skips those without
    forest = _forest(60, 4, ("BRANCH_LEQ",), "class", targets, low)
    labels = [3, 5, 9, 11][:classes]
    given: dict[str, Any] = {"classlabels_int64s": labels, "post_transform": transform}
    _check("TreeEnsembleClassifier", {"x": _data()}, 2, **forest, **given)


def test_trees_that_go_round_are_refused() -> None:
    forest = _forest(1, 2, ("BRANCH_LEQ",), "target", 1, 0)
    forest["nodes_truenodeids"] = [0] * len(forest["nodes_treeids"])
    model = _model("TreeEnsembleRegressor", {"x": _data()}, 1, 3, n_targets=1, **forest)
    with pytest.raises(ImportModelError, match="round in a circle"):
        import_model_proto(model)


# --- linear models and support vectors ----------------------------------------------------------


def _numbers(*shape: int, seed: int = 3) -> list[float]:
    found = np.random.default_rng(seed).uniform(-1, 1, shape).reshape(-1)
    return [float(value) for value in found]


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("classes", [2, 3])
def test_linear_models_agree_with_onnxruntime(classes: int, transform: str) -> None:
    rows = 1 if classes == 2 else classes
    given: dict[str, Any] = {
        "coefficients": _numbers(rows, WIDTH),
        "intercepts": _numbers(rows, seed=4),
    }
    labels = list(range(2, 2 + classes))
    _check(
        "LinearClassifier",
        {"x": _data()},
        2,
        1,
        classlabels_ints=labels,
        post_transform=transform,
        **given,
    )
    _check("LinearRegressor", {"x": _data()}, 1, 1, targets=rows, **given)


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("more", [0, 1, WIDTH])
def test_coefficients_that_are_left_over_are_not_read(rows: int, more: int) -> None:
    """onnxruntime ships a classifier of two columns with coefficients of four."""
    given: dict[str, Any] = {
        "coefficients": _numbers(rows * (WIDTH + more)),  # onnxruntime wants as many of each
        "intercepts": _numbers(rows, seed=4),
    }
    labels = list(range(rows))
    _check("LinearClassifier", {"x": _data()}, 2, 1, classlabels_ints=labels, **given)
    _check("LinearRegressor", {"x": _data()}, 1, 1, targets=rows, **given)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("classes", [2, 3])
def test_support_vectors_agree_with_onnxruntime(classes: int, kernel: str) -> None:
    own = [4, 3, 5][:classes]
    given: dict[str, Any] = {"kernel_type": kernel, "kernel_params": [0.3, 0.1, 2.0]}
    given["support_vectors"] = _numbers(sum(own), WIDTH)
    pairs = classes * (classes - 1) // 2
    of_classes: dict[str, Any] = {
        "coefficients": _numbers(sum(own), classes - 1, seed=5),
        "rho": _numbers(pairs),
    }
    labels = list(range(classes))
    _check(
        "SVMClassifier",
        {"x": _data()},
        2,
        1,
        classlabels_ints=labels,
        vectors_per_class=own,
        **given,
        **of_classes,
    )
    _check(
        "SVMRegressor",
        {"x": _data()},
        1,
        1,
        coefficients=_numbers(sum(own)),
        rho=[0.2],
        n_supports=sum(own),
        **given,
    )


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_classes_of_support_vectors_have_probabilities(classes: int) -> None:
    pairs = classes * (classes - 1) // 2
    own = [3, 2, 2, 4][:classes]
    _check(
        "SVMClassifier",
        {"x": _data()},
        2,
        1,
        classlabels_ints=list(range(classes)),
        vectors_per_class=own,
        support_vectors=_numbers(sum(own), WIDTH),
        coefficients=_numbers(sum(own), classes - 1, seed=5),
        rho=_numbers(pairs),
        prob_a=[-1.5 + pair / 4 for pair in range(pairs)],
        prob_b=_numbers(pairs, seed=7),
        kernel_type="RBF",
        kernel_params=[0.3, 0.0, 0.0],
    )


# --- features -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
def test_preparations_agree_with_onnxruntime(dtype: str) -> None:
    data = {"x": _data(dtype)}
    _check("Scaler", data, offset=_numbers(WIDTH), scale=_numbers(WIDTH, seed=5))
    for norm in ("L1", "L2", "MAX"):
        _check("Normalizer", {"x": np.abs(data["x"]) + np.array(1, dtype)}, norm=norm)
    picks = {**data, "i": np.array([[4, 0, 4]], np.int64)}
    _check("ArrayFeatureExtractor", picks)
    if dtype == "float32":
        _check("Binarizer", data, threshold=0.3)
        _check("FeatureVectorizer", {"x": data["x"], "z": data["x"]}, inputdimensions=[5, 5])
    if dtype in ("float32", "int64"):
        kind = "float" if dtype == "float32" else "int64"
        given: dict[str, Any] = {
            f"imputed_value_{kind}s": [1, 2, 3, 4, 5] if kind == "int64" else _numbers(5),
            f"replaced_value_{kind}": data["x"][0, 0].item(),
        }
        _check("Imputer", data, **given)


@pytest.mark.parametrize("keys", [5, 300])
def test_labels_are_looked_up(keys: int) -> None:
    rng = np.random.default_rng(0)
    listed = rng.permutation(1000)[:keys].tolist()
    data = {"x": rng.integers(0, 1000, (ROWS, 3)).astype(np.int64)}
    data["x"][0] = listed[0], listed[-1], -5
    given: dict[str, Any] = {
        "keys_int64s": listed,
        "values_floats": _numbers(keys),
        "default_float": 0.5,
    }
    _check("LabelEncoder", data, version=2, **given)
    _check("OneHotEncoder", {"x": data["x"][:, :1]}, version=1, cats_int64s=listed[:5], zeros=1)


def test_labels_of_any_number_of_rows_are_searched() -> None:
    keys, rng = 3 * np.arange(300), np.random.default_rng(0)
    listed: dict[str, Any] = {
        "keys_int64s": keys.tolist(),
        "values_int64s": (keys + 1).tolist(),
    }
    encoder = helper.make_node("LabelEncoder", ["x"], ["y"], domain=DOMAIN, **listed)
    rows = tensor("x", ["n", 2], TensorProto.INT64)
    proto = model([encoder], [rows], [untyped("y")], domains={DOMAIN: 2})
    executable = compiler.build(import_model_proto(proto, {"n": ("1..40",)}))
    for number in (1, 7, 40):
        x = rng.integers(-9, 999, (number, 2))
        expected = np.where((x % 3 == 0) & (x >= 0) & (x < 900), x + 1, -1)
        np.testing.assert_array_equal(executable.run({"x": x})["y"], expected)


def test_a_key_that_is_nan_is_what_any_nan_is() -> None:
    """As ONNX has it; onnxruntime finds none."""
    data = {"x": np.array([1.5, np.nan, 2.5, 0], np.float32)}
    given: dict[str, Any] = {"keys_floats": [1.5, float("nan"), 0.0], "values_int64s": [4, 5, 6]}
    model = _model("LabelEncoder", data, 1, 2, default_int64=-7, **given)
    (found,) = outputs_of(import_model_proto(model), data)
    np.testing.assert_array_equal(found, [4, 5, -7, 6])
