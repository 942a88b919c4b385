"""Texts: string tensors that operators pass, compare and look up, as onnxruntime has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.compiler.frontend.onnx_models import model, node
from tests.onnxruntime_session import exact_session
from tunefarm import compiler
from tunefarm.compiler.errors import ImportModelError, InputError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.serialize import graph_from_structure, structure_to_json
from tunefarm.compiler.runtime.c_library.c_header import header_text
from tunefarm.compiler.runtime.c_library.c_interface import c_interface
from tunefarm.compiler.runtime.execution.executable import Executable

FLOAT, INT64, STRING, BOOL = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.STRING,
    TensorProto.BOOL,
)
ML = "ai.onnx.ml"
WORDS = np.array([["a", "b"], ["xyz", "é"]], object)


def port(name: str, dtype: int, *shape: int) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def records(name: str, key: int) -> Any:
    value = helper.make_tensor_type_proto(FLOAT, [])
    return helper.make_value_info(
        name, helper.make_sequence_type_proto(helper.make_map_type_proto(key, value))
    )


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constants: Mapping[str, Sequence[str]] = {},
) -> tuple[onnx.ModelProto, Executable]:
    words = {name: np.array(text, object) for name, text in constants.items()}
    proto = model(nodes, inputs, outputs, words, opset=21, domains={ML: 3})
    return proto, compiler.build(import_model_proto(proto))


def check(model: tuple[onnx.ModelProto, Executable], feeds: Mapping[str, Any]) -> None:
    proto, executable = model
    session = exact_session(proto)
    expected = dict(
        zip([o.name for o in proto.graph.output], session.run(None, feeds), strict=True)
    )
    results = executable.run(feeds)
    assert results.keys() == expected.keys()
    for name, wanted in expected.items():
        found: Any = results[name]
        if isinstance(wanted, list):
            assert [row.keys() for row in found] == [row.keys() for row in wanted]
            for row, other in zip(found, wanted, strict=True):
                assert row == pytest.approx(other, rel=1e-5)
        elif wanted.dtype == object:
            assert found.dtype == object
            np.testing.assert_array_equal(found, wanted)
        else:
            np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_texts_are_passed_compared_and_joined() -> None:
    nodes = [
        node("Transpose", "x", "turned"),
        node("Reshape", "turned flat", "row"),
        node("Concat", "row known", "joined", axis=0),
        node("Gather", "joined places", "picked"),
        node("Equal", "row known", "same"),
        node("Where", "same row known", "chosen"),
        node("Constant", "", "flat", value_ints=[4]),
    ]
    outputs = [port("picked", STRING, 3), port("same", BOOL, 4), port("chosen", STRING, 4)]
    inputs = [port("x", STRING, 2, 2), port("places", INT64, 3)]
    nodes = [nodes[-1], *nodes[:-1]]
    model = build(nodes, inputs, outputs, {"known": ["a", "q", "b", "é"]})
    check(model, {"x": WORDS, "places": np.array([7, 0, 3])})
    check(model, {"x": np.array([["new", "b"], ["b", ""]], object), "places": np.array([0, 1, 2])})


@pytest.mark.parametrize(
    ("operator", "attributes", "feed", "result"),
    [
        ("LabelEncoder", {"keys_strings": ["a", "é"], "values_int64s": [5, 6]}, WORDS, INT64),
        ("LabelEncoder", {"keys_strings": ["a", "b"], "values_floats": [5.5, 6]}, WORDS, FLOAT),
        (
            "LabelEncoder",
            {"keys_strings": ["a", "b"], "values_strings": ["A", "a"], "default_string": "?"},
            WORDS,
            STRING,
        ),
        (
            "LabelEncoder",
            {"keys_int64s": [1, 2], "values_strings": ["A", "B"]},
            np.array([[2, 1], [0, 2]]),
            STRING,
        ),
        ("CategoryMapper", {"cats_strings": ["a", "xyz"], "cats_int64s": [3, 9]}, WORDS, INT64),
        (
            "CategoryMapper",
            {"cats_strings": ["a", "xyz"], "cats_int64s": [3, 9], "default_string": "none"},
            np.array([[3, 9], [4, 3]]),
            STRING,
        ),
    ],
)
def test_look_ups(operator: str, attributes: dict[str, Any], feed: Any, result: int) -> None:
    kind = STRING if feed.dtype == object else INT64
    nodes = [node(operator, "x", domain=ML, **attributes)]
    model = build(nodes, [port("x", kind, 2, 2)], [port("y", result, 2, 2)])
    check(model, {"x": feed})


def test_categories_and_n_grams() -> None:
    nodes = [
        node("OneHotEncoder", "x", "hot", domain=ML, cats_strings=["b", "xyz", "a"]),
        node(
            "TfIdfVectorizer",
            "x",
            "grams",
            mode="TF",
            min_gram_length=1,
            max_gram_length=2,
            max_skip_count=0,
            ngram_counts=[0, 2],
            ngram_indexes=[0, 1, 2],
            pool_strings=["a", "b", "a", "b"],
        ),
    ]
    outputs = [port("hot", FLOAT, 4, 3), port("grams", FLOAT, 3)]
    model = build(nodes, [port("x", STRING, 4)], outputs)
    check(model, {"x": np.array(["a", "b", "new", "a"], object)})


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("indexes", [[2, 0, 1], [4, 1, 3], [1, 1, 0]])
def test_weights_belong_to_n_grams_wherever_they_are_counted(mode: str, indexes: list[int]) -> None:
    weights: Any = {} if mode == "IDF" and len(set(indexes)) < 3 else {"weights": [2.0, 3.0, 5.0]}
    gram = node(
        "TfIdfVectorizer",
        "x",
        mode=mode,
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=1,
        ngram_counts=[0, 2],
        ngram_indexes=indexes,
        pool_strings=["a", "b", "a", "b"],
        **weights,
    )
    model = build([gram], [port("x", STRING, 2, 3)], [port("y", FLOAT, 2, max(indexes) + 1)])
    check(model, {"x": np.array([["a", "b", "a"], ["a", "c", "b"]], object)})


def test_weights_of_n_grams_that_share_an_output_are_refused_in_mode_idf() -> None:
    gram = node(
        "TfIdfVectorizer",
        "x",
        mode="IDF",
        min_gram_length=1,
        max_gram_length=1,
        max_skip_count=0,
        ngram_counts=[0],
        ngram_indexes=[0, 0],
        pool_strings=["a", "b"],
        weights=[2.0, 3.0],
    )
    with pytest.raises(ImportModelError, match="mode=IDF with weights"):
        build([gram], [port("x", STRING, 3)], [port("y", FLOAT, 1)])


def test_labels_that_are_picked_from_a_constant_vector_are_strings() -> None:
    nodes = [
        node("ArgMax", "x", "number", axis=1),
        node("ArrayFeatureExtractor", "classes number", "picked", domain=ML),
        node("Reshape", "picked flat", "label"),
    ]
    nodes.insert(0, node("Constant", "", "flat", value_ints=[-1]))
    classes = {"classes": ["dog", "cat"]}
    model = build(nodes, [port("x", FLOAT, 3, 2)], [port("label", STRING, 3)], classes)
    check(model, {"x": np.array([[1, 2], [3, 1], [0, 1]], np.float32)})


@pytest.mark.parametrize("labels", [["cat", "dog", "cow"], [7, 5, 9]])
def test_classifier_as_sklearn_exports_it(labels: list[Any], tmp_path: Path) -> None:
    texts = isinstance(labels[0], str)
    names: Any = {"classlabels_strings" if texts else "classlabels_ints": labels}
    zipped: Any = {f"classlabels_{'strings' if texts else 'int64s'}": labels}
    nodes = [
        node(
            "LinearClassifier",
            "x",
            "label scores",
            domain=ML,
            coefficients=[0.1, 0.2, 0.3, 0.4, -0.5, 0.6],
            intercepts=[0.0, 0.1, 0.2],
            post_transform="SOFTMAX",
            multi_class=1,
            **names,
        ),
        node("ZipMap", "scores", "probabilities", domain=ML, **zipped),
    ]
    kind = STRING if texts else INT64
    outputs = [port("label", kind, 5), records("probabilities", kind)]
    proto, executable = build(nodes, [port("x", FLOAT, 5, 2)], outputs)
    feeds = {"x": np.random.default_rng(0).standard_normal((5, 2)).astype(np.float32)}
    check((proto, executable), feeds)
    executable.save(tmp_path / "m.tuned")
    check((proto, compiler.load(tmp_path / "m.tuned")), feeds)
    graph = import_model_proto(proto)
    text = json.loads(json.dumps(structure_to_json(graph)))
    check((proto, compiler.build(graph_from_structure(text, graph.constants))), feeds)


def test_numbers_of_words_do_for_texts_and_other_things_do_not() -> None:
    nodes = [node("Gather", "known i"), node("Identity", "x", "z")]
    inputs = [port("i", INT64, 2), port("x", STRING, 2)]
    outputs = [port("y", STRING, 2), port("z", STRING, 2)]
    _, executable = build(nodes, inputs, outputs, {"known": ["p", "q"]})
    numbers = executable.run({"i": np.array([1, 0]), "x": np.array([1, 99])})
    assert [numbers["y"].tolist(), numbers["z"].tolist()] == [["q", "p"], ["q", ""]]
    with pytest.raises(InputError, match=r"input 'x' cannot be read: .* must have strings"):
        executable.run({"i": np.array([1, 0]), "x": np.array([1.5, 2.5])})


def test_what_computes_with_texts_is_refused() -> None:
    with pytest.raises(ImportModelError, match="computes with strings"):
        build([node("Cast", "x", to=STRING)], [port("x", FLOAT, 2)], [port("y", STRING, 2)])


def test_headers_tell_the_numbers_of_words() -> None:
    nodes = [node("LabelEncoder", "x", domain=ML, keys_strings=["p"], values_strings=["*/"])]
    _, executable = build(nodes, [port("x", STRING, 2)], [port("y", STRING, 2)])
    header = header_text(c_interface([executable.spec]), [executable.spec.target], "cc")
    known = executable.spec.structure.words
    assert f'{known.index("p")} "p"' in header
    assert f'{known.index("*/")} "*/"' in header.replace("<0x2a>", "*")
    assert header.count("*/") == header.count("/*")
