"""Operators of strings at a graph's beginning: pipelines as scikit-learn's exporter writes them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.compiler.frontend.onnx_models import model as model_of
from tests.compiler.strings.string_nodes import LOCALE, strings
from tests.onnxruntime_session import exact_session
from tests.processes import python
from tunefarm import compiler
from tunefarm.compiler.errors import (
    ExportError,
    ImportModelError,
    InputError,
    ShapeError,
    UnsupportedOperatorError,
)
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.runtime.c_library.export_c import export_library, export_object
from tunefarm.compiler.runtime.execution.executable import Executable

ML, MS = "ai.onnx.ml", "com.microsoft"
FLOAT, INT64, STRING, BOOL = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.STRING,
    TensorProto.BOOL,
)
POOL = ["document", "first", "is", "one", "the", "this", "été", "is", "this", "the", "first"]
WIDTH = 9  # seven words and two pairs of them
INDEXES = [0, 2, 3, 5, 6, 8, 4, 1, 7]
SENTENCES = ["This IS the first document!", "", "one été, THE first", "...", "is this the one"]


def node(operator: str, *names: str, domain: str = "", **attributes: Any) -> onnx.NodeProto:
    """A node of one result, the last of its names."""
    return helper.make_node(operator, names[:-1], names[-1:], domain=domain, **attributes)


def port(name: str, dtype: int, *shape: int | str | None) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constants: Mapping[str, Any] = {},
) -> onnx.ModelProto:
    arrays = {name: np.asarray(value) for name, value in constants.items()}
    return model_of(nodes, inputs, outputs, arrays, opset=21, domains={ML: 3, MS: 1})


def vectorizer(
    text: str, result: str, *, mode: str = "TF", tokens: Mapping[str, Any] | None = None
) -> list[onnx.NodeProto]:
    """What the exporter writes of a TfidfVectorizer."""
    tokens = tokens or {"tokenexp": "[a-zA-Z0-9_]+"}
    return [
        node("Reshape", text, "flat", f"{result}_flat"),
        node(
            "StringNormalizer",
            f"{result}_flat",
            f"{result}_lower",
            case_change_action="LOWER",
            is_case_sensitive=0,
            locale=LOCALE,
        ),
        node(
            "Tokenizer",
            f"{result}_lower",
            f"{result}_tokens",
            domain=MS,
            mark=0,
            mincharnum=1,
            pad_value="#",
            **tokens,
        ),
        node("Flatten", f"{result}_tokens", f"{result}_rows"),
        node(
            "TfIdfVectorizer",
            f"{result}_rows",
            result,
            mode=mode,
            min_gram_length=1,
            max_gram_length=2,
            max_skip_count=0,
            ngram_counts=[0, 7],
            ngram_indexes=INDEXES,
            pool_strings=POOL,
            weights=[1.0 + number / 8 for number in range(WIDTH)],
        ),
    ]


CONSTANTS = {"flat": np.array([-1]), "idf": np.linspace(0.5, 2, WIDTH).astype(np.float32)}


def classifier(features: str, width: int, *, labels: Sequence[str | int]) -> list[onnx.NodeProto]:
    """What the exporter writes of a LogisticRegression."""
    is_text = isinstance(labels[0], str)
    rng = np.random.default_rng(0)
    named: Any = {"classlabels_strings" if is_text else "classlabels_ints": labels}
    zipped: Any = {"classlabels_strings" if is_text else "classlabels_int64s": labels}
    scores = helper.make_node(
        "LinearClassifier",
        [features],
        ["label", "scores"],
        domain=ML,
        coefficients=rng.standard_normal(3 * width).tolist(),
        intercepts=[0.25, -0.125, 0.0],
        multi_class=1,
        post_transform="SOFTMAX",
        **named,
    )
    return [
        scores,
        node("Normalizer", "scores", "probabilities", domain=ML, norm="L1"),
        node("ZipMap", "probabilities", "maps", domain=ML, **zipped),
    ]


def pipeline(
    rows: int | str | None = None,
    *,
    mode: str = "TF",
    tokens: Mapping[str, Any] | None = None,
    labels: Sequence[str | int] = ("cat", "dog", "cow"),
) -> onnx.ModelProto:
    """Sentences, their weighted words, labels and dictionaries."""
    nodes = [
        *vectorizer("text", "counts", mode=mode, tokens=tokens),
        node("Mul", "counts", "idf", "weighted"),
        node("Normalizer", "weighted", "features", domain=ML, norm="L2"),
        *classifier("features", WIDTH, labels=labels),
    ]
    kind = STRING if isinstance(labels[0], str) else INT64
    maps = helper.make_map_type_proto(kind, helper.make_tensor_type_proto(FLOAT, []))
    outputs = [
        port("label", kind, rows),
        helper.make_value_info("maps", helper.make_sequence_type_proto(maps)),
    ]
    return model(nodes, [port("text", STRING, rows, 1)], outputs, CONSTANTS)


def check(proto: onnx.ModelProto, executable: Executable, feeds: Mapping[str, Any]) -> None:
    expected = exact_session(proto).run(None, dict(feeds))
    results = executable.run(feeds)
    assert list(results) == [output.name for output in proto.graph.output]
    for found, wanted in zip(results.values(), expected, strict=True):
        agree(found, wanted)


def agree(found: Any, wanted: Any) -> None:
    if isinstance(wanted, list):
        for row, other in zip(found, wanted, strict=True):
            assert row == pytest.approx(other, rel=1e-4, abs=1e-6)
    elif wanted.dtype.kind == "f":
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    else:
        assert found.dtype == wanted.dtype
        assert found.tolist() == wanted.tolist()


def column(*items: Any) -> Any:
    return strings(*items).reshape(-1, 1)


@pytest.fixture(scope="module")
def built() -> tuple[onnx.ModelProto, Executable]:
    proto = pipeline("N")
    return proto, compiler.build(import_model_proto(proto, {"N": ((1, 9),)}))


# --- whole pipelines ----------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from([*POOL, "THE", "Été", "xyz", "!", ""]), max_size=6).map(" ".join)
        | st.text(st.characters(exclude_categories=["Cs"]), max_size=12),  # as UTF-8 has them
        min_size=1,
        max_size=9,
    )
)
def test_drawn_sentences(built: tuple[onnx.ModelProto, Executable], sentences: list[str]) -> None:
    check(*built, {"text": column(*sentences)})


@pytest.mark.parametrize("mode", ["IDF", "TFIDF"])
@pytest.mark.parametrize("tokens", [{"separators": [" ", "\\.", ","]}, {"tokenexp": "."}])
def test_modes_and_tokens(mode: str, tokens: Mapping[str, Any]) -> None:
    proto = pipeline(5, mode=mode, tokens=tokens, labels=[7, 5, 9])
    executable = compiler.build(import_model_proto(proto))
    check(proto, executable, {"text": column(*SENTENCES)})


def test_columns_of_a_table_beside_numbers() -> None:
    """Two texts of one input, one of another, and numbers that are compiled alone."""
    nodes = [
        node("ArrayFeatureExtractor", "table", "first", "title", domain=ML),
        node("ArrayFeatureExtractor", "table", "second", "body", domain=ML),
        *vectorizer("title", "a"),
        *vectorizer("body", "b", tokens={"separators": [" "]}),
        *vectorizer("more", "c", mode="IDF"),
        node("Concat", "a", "x", "b", "c", "joined", axis=1),
    ]
    proto = model(
        nodes,
        [
            port("x", FLOAT, "N", 2),
            port("table", STRING, "N", 3),
            port("more", STRING, "N"),
            port("z", FLOAT, "N", 1),
        ],
        [port("joined", FLOAT, "N", 2 + 3 * WIDTH), port("w", FLOAT, "N", 1)],
        {**CONSTANTS, "first": np.array([0]), "second": np.array([2])},
    )
    proto.graph.node.append(node("Neg", "z", "w"))
    executable = compiler.build(import_model_proto(proto, {"N": ((1, 6),)}))
    table = np.array([SENTENCES[:3], SENTENCES[2:]], object)
    numbers = np.arange(4, dtype=np.float32).reshape(2, 2)
    more, z = strings("this is", "the one"), np.ones((2, 1), np.float32)
    check(proto, executable, {"x": numbers, "table": table, "more": more, "z": z})
    session = compiler.InferenceSession(executable)
    declared = exact_session(proto).get_inputs()
    assert [(p.name, p.type, p.shape) for p in session.get_inputs()] == [
        (p.name, p.type, p.shape) for p in declared
    ]


def test_strings_that_are_read_by_both_and_looked_up_behind() -> None:
    nodes = [
        node("StringNormalizer", "x", "lower", case_change_action="LOWER", locale=LOCALE),
        node("LabelEncoder", "lower", "code", domain=ML, keys_strings=["a"], values_int64s=[7]),
        node("LabelEncoder", "x", "own", domain=ML, keys_strings=["A"], values_int64s=[5]),
        node("StringConcat", "lower", "end", "ended"),
        node("RegexFullMatch", "ended", "hit", pattern="[ab]\\.|É.*"),
        node("Identity", "ended", "same"),
    ]
    outputs = [
        port("code", INT64, "N"),
        port("own", INT64, "N"),
        port("hit", BOOL, "N"),
        port("same", STRING, "N"),
        port("lower", STRING, "N"),
    ]
    constants = {"end": strings(".")}
    proto = model(nodes, [port("x", STRING, "N")], outputs, constants)
    executable = compiler.build(import_model_proto(proto, {"N": ((1, 6),)}))
    check(proto, executable, {"x": strings("A", "b", "É", "", "a")})
    assert next(iter(executable.inputs)) == "x"


def test_pieces_whose_number_alone_is_read() -> None:
    split = helper.make_node("StringSplit", ["x"], ["", "count"], delimiter=",")
    split.output[0] = "pieces"
    nodes = [split, node("Neg", "count", "y")]
    proto = model(nodes, [port("x", STRING, 2, 2)], [port("y", INT64, 2, 2)])
    executable = compiler.build(import_model_proto(proto))
    check(proto, executable, {"x": np.array([["a,b", ""], ["c", ",,"]], object)})


def test_rows_and_columns_that_are_flattened_together() -> None:
    proto = model(
        vectorizer("text", "counts"),
        [port("text", STRING, "N", "M")],
        [port("counts", FLOAT, None, WIDTH)],
        CONSTANTS,
    )
    executable = compiler.build(import_model_proto(proto, {"N": ((1, 4),), "M": ((1, 3),)}))
    check(proto, executable, {"text": np.array([SENTENCES[:2], SENTENCES[2:4]], object)})


# --- files, processes and sessions --------------------------------------------------------------

_RUN = """
import sys, numpy as np, tunefarm
executable = tunefarm.load(sys.argv[1])
text = np.array([["This is the first"], ["one"], [""]], dtype=object)
print(executable.run({"text": text})["label"].tolist())
"""


def test_an_artifact_runs_in_another_process(
    built: tuple[onnx.ModelProto, Executable], tmp_path: Path
) -> None:
    proto, executable = built
    executable.save(tmp_path / "m.tuned")
    check(proto, compiler.load(tmp_path / "m.tuned"), {"text": column(*SENTENCES)})
    ran = python("-c", _RUN, str(tmp_path / "m.tuned"), check=True)
    text = column("This is the first", "one", "")
    assert ran.stdout.strip() == str(
        exact_session(proto).run(["label"], {"text": text})[0].tolist()
    )


def test_a_session_takes_the_place_of_onnxruntime(tmp_path: Path) -> None:
    proto = pipeline()
    onnx.save(proto, tmp_path / "m.onnx")
    theirs = exact_session(proto)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = compiler.InferenceSession(str(tmp_path / "m.onnx"))
    (given,) = session.get_inputs()
    (declared,) = theirs.get_inputs()
    assert (given.name, given.type, given.shape) == (declared.name, declared.type, declared.shape)
    for count in (5, 2):
        text = column(*SENTENCES[:count])
        for found, wanted in zip(
            session.run(None, {"text": text}), theirs.run(None, {"text": text}), strict=True
        ):
            agree(found, wanted)
    listed = [[sentence] for sentence in SENTENCES[:2]]
    assert session.run(["label"], {"text": listed})[0].shape == (2,)


def test_strings_may_be_any_arrays_of_them(built: tuple[onnx.ModelProto, Executable]) -> None:
    _, executable = built
    expected = executable.run({"text": column(*SENTENCES)})["label"].tolist()
    for text in (
        column(*SENTENCES).astype(str),
        [[sentence] for sentence in SENTENCES],
        column(*(sentence.encode() for sentence in SENTENCES)),
    ):
        assert executable.run({"text": text})["label"].tolist() == expected


def test_what_the_strings_become_may_be_given_instead(
    built: tuple[onnx.ModelProto, Executable],
) -> None:
    _, executable = built
    tensors = executable.without_strings({"text": column(*SENTENCES)})
    assert list(tensors) == ["counts"]
    expected = executable.run({"text": column(*SENTENCES)})
    assert executable.run(tensors)["label"].tolist() == expected["label"].tolist()


# --- errors of a run ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "input 'text' is missing"),
        (
            {"text": np.ones((2, 1), np.float32)},
            "input 'text' cannot be read: .* must have strings",
        ),
        ({"text": column("a \ud800")}, "Tokenizer cannot read strings: .* surrogates not allowed"),
        ({"text": np.array([[1]], object)}, "input 'text' cannot be read: .* must have strings"),
        ({"text": strings("a")}, r"input 'text' has the shape \[1\], the model declares \[N, 1\]"),
        ({"text": column("a"), "more": 1}, "no input 'more'"),
        ({"text": column(*"abcdefghij")}, "counts.*Tokenizer.*make of 'text'"),
    ],
)
def test_errors_of_a_run(
    built: tuple[onnx.ModelProto, Executable], feeds: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        built[1].run(feeds)


# --- refusals -----------------------------------------------------------------------------------


def test_a_c_library_names_the_operators(
    built: tuple[onnx.ModelProto, Executable], tmp_path: Path
) -> None:
    for export in (export_library, export_object):
        with pytest.raises(ExportError, match=r"StringNormalizer, Tokenizer.*compute counts"):
            export(built[1].spec, tmp_path / "c")


@pytest.mark.parametrize("operator", ["StringNormalizer", "Tokenizer", "StringConcat"])
def test_what_is_no_beginning_is_refused_by_name(operator: str) -> None:
    attributes: Any = {"mark": 0, "mincharnum": 1, "pad_value": "", "tokenexp": "a"}
    domain = MS if operator == "Tokenizer" else ""
    given = ["label", "label"] if operator == "StringConcat" else ["label"]
    nodes = [
        node("LabelEncoder", "x", "label", domain=ML, keys_int64s=[1], values_strings=["a"]),
        node(operator, *given, "y", domain=domain, **(attributes if domain else {})),
    ]
    proto = model(nodes, [port("x", INT64, 2)], [port("y", STRING, None)])
    with pytest.raises(UnsupportedOperatorError, match=rf"{operator}.*beginning of a graph only"):
        import_model_proto(proto)


def test_inside_a_branch_it_is_refused_by_name() -> None:
    inner = node("StringNormalizer", "x", "lower", case_change_action="LOWER")
    other = node("Identity", "x", "same")
    graphs: Any = {
        name: helper.make_graph([made], name, [], [port(made.output[0], STRING, 2)])
        for name, made in (("then_branch", inner), ("else_branch", other))
    }
    inputs = [port("x", STRING, 2), port("which", BOOL)]
    proto = model([node("If", "which", "y", **graphs)], inputs, [port("y", STRING, 2)])
    with pytest.raises(ImportModelError, match=r"StringNormalizer.*beginning of a graph only"):
        import_model_proto(proto)


def test_numbers_of_tokens_that_depend_on_strings_are_refused() -> None:
    nodes = [
        *vectorizer("text", "counts")[:4],
        node("LabelEncoder", "counts_rows", "y", domain=ML, keys_strings=["a"], values_int64s=[7]),
    ]
    proto = model(nodes, [port("text", STRING, 2, 1)], [port("y", INT64, None, None)], CONSTANTS)
    with pytest.raises(UnsupportedOperatorError, match=r"how many strings Flatten .* depends on"):
        import_model_proto(proto)


def test_a_malformed_step_is_an_error_that_names_it() -> None:
    proto = pipeline(2, tokens={"tokenexp": "(?=a)"})
    with pytest.raises(ImportModelError, match=r"Tokenizer 'counts_tokens': the expression"):
        import_model_proto(proto)


def test_open_sizes_are_asked_for_by_the_name_of_the_strings() -> None:
    with pytest.raises(ShapeError, match="axis 0 of 'text'") as caught:
        import_model_proto(pipeline())
    assert "--shape text=1..8,1" in (caught.value.hint or "")
