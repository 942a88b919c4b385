"""Operators of strings on the host, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.compiler.strings.string_nodes import LOCALE, check, ours, string_model, strings, theirs
from tunefarm.compiler.errors import InputError
from tunefarm.compiler.strings.operators import StringOperatorError

TEXT = st.text("abAB éÉİıßΣςǅ𐐀ﬁ\n.,-1", max_size=7)
ROW = st.lists(TEXT, min_size=1, max_size=5).map(lambda items: strings(*items))
TOKENS: dict[str, Any] = {"mark": 0, "mincharnum": 1, "pad_value": "#"}
GRAMS: dict[str, Any] = {"min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}


# --- StringNormalizer ---------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    ROW,
    st.sampled_from(["NONE", "LOWER", "UPPER"]),
    st.booleans(),
    st.lists(st.sampled_from(["a", "É", "ab", "ß", "1", "Σ"]), unique=True, max_size=3),
    st.booleans(),
    st.sampled_from([LOCALE, "C"]),
)
def test_normalizer(
    row: Any, action: str, sensitive: bool, stopwords: list[str], is_matrix: bool, locale: str
) -> None:
    words: Any = {"stopwords": stopwords} if stopwords else {}
    check(
        "StringNormalizer",
        row.reshape(1, -1) if is_matrix else row,
        case_change_action=action,
        is_case_sensitive=int(sensitive),
        locale=locale,
        **words,
    )


@pytest.mark.parametrize("action", ["LOWER", "UPPER"])
def test_case_of_every_character(action: str) -> None:
    codes = [*range(1, 0xD800), *range(0xE000, 0x2000), *range(0x10000, 0x1F000)]
    check("StringNormalizer", strings(*map(chr, codes)), case_change_action=action, locale=LOCALE)


def test_normalizer_as_onnx_defines_it() -> None:
    row = strings("Monday", "tuesday", "WEDNESDAY")
    attributes: Any = {"case_change_action": "UPPER", "stopwords": ["monday"]}
    model = string_model("StringNormalizer", [row], attributes)
    expected: Any = onnx.reference.ReferenceEvaluator(model).run(None, {"x0": row})
    assert ours("StringNormalizer", row, **attributes)[0].tolist() == expected[0].tolist()


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 2), {}),
        ((1, 1, 1), {}),
        ((2,), {"case_change_action": "TITLE"}),
        ((2,), {"locale": "tr_TR.UTF-8"}),
    ],
)
def test_normalizers_that_are_refused(shape: tuple[int, ...], attributes: Any) -> None:
    with pytest.raises(StringOperatorError):
        ours("StringNormalizer", np.full(shape, "a", object), **attributes)


def test_normalizer_of_nothing() -> None:
    with pytest.raises(InputError, match="one string at least"):
        ours("StringNormalizer", np.empty(0, object))


# --- Tokenizer ----------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.text("abx é.|\n", max_size=9), min_size=2, max_size=4),
    st.sampled_from(
        [
            {"separators": [" "]},
            {"separators": ["\\.", " ", "x+"]},
            {"separators": ["a", "ab"]},
            {"separators": ["ab", "a"]},
            {"separators": ["."]},
            {"separators": ["x*"]},
            {"separators": [r"\b"]},
            {"separators": ["^a", "b$"]},
            {"separators": [""]},
            {"tokenexp": "."},
            {"tokenexp": "[a-z]+"},
            {"tokenexp": "a|ab"},
            {"tokenexp": "x*"},
            {"tokenexp": r"\b\w\w+\b"},
        ]
    ),
    st.booleans(),
    st.sampled_from([1, 2, 3]),
    st.booleans(),
)
def test_tokenizer(
    texts: list[str], kind: dict[str, Any], mark: bool, least: int, is_matrix: bool
) -> None:
    is_characters = kind in ({"separators": [""]}, {"tokenexp": "."})
    array = strings(*texts)
    check(
        "Tokenizer",
        array[: len(array) // 2 * 2].reshape(-1, 2) if is_matrix else array,
        mark=int(mark),
        mincharnum=1 if is_characters else least,
        pad_value="",
        **kind,
    )


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2,), {"mincharnum": 2, "separators": [""]}),
        ((2,), {"mincharnum": 2, "tokenexp": "."}),
        ((2,), {"mincharnum": 0, "tokenexp": "a"}),
        ((2,), {"tokenexp": ""}),
        ((2,), {"tokenexp": "(?=a)"}),
        ((2,), {"separators": ["(", "a"]}),
        ((2,), {}),
        ((1, 1, 1), {"tokenexp": "a"}),
    ],
)
def test_tokenizers_that_are_refused(shape: tuple[int, ...], attributes: Any) -> None:
    array = np.full(shape, "a", object)
    with pytest.raises(StringOperatorError):
        ours("Tokenizer", array, **{**TOKENS, **attributes})
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        theirs("Tokenizer", array, **{**TOKENS, **attributes})


# --- TfIdfVectorizer ----------------------------------------------------------------------------

ITEMS = st.sampled_from(["a", "b", "c", "", "é"])


@example(["a", "b", "a"], (3,), "IDF", (1, 2), 0, [2, 0, 2, 3, 5], True)
@example(["a", "x", "b", "a"], (4,), "IDF", (1, 2), 1, [2, 0, 2, 3, 5], True)
@settings(max_examples=80, deadline=None)
@given(
    st.lists(ITEMS, min_size=6, max_size=6),
    st.sampled_from([(6,), (1, 6), (2, 3), (6, 1), (3, 2)]),
    st.sampled_from(["TF", "IDF", "TFIDF"]),
    st.sampled_from([(1, 1), (1, 2), (2, 2), (1, 3), (2, 3), (3, 3)]),
    st.integers(0, 3),
    st.permutations([0, 2, 2, 3, 5]),
    st.booleans(),
)
def test_vectorizer(
    items: list[str],
    shape: tuple[int, ...],
    mode: str,
    lengths: tuple[int, int],
    skips: int,
    indexes: list[int],
    weighted: bool,
) -> None:
    weights: Any = {"weights": [2.0, 3.0, 0.5, 0.1, 7.0]} if weighted else {}
    check(
        "TfIdfVectorizer",
        strings(*items).reshape(shape),
        mode=mode,
        min_gram_length=lengths[0],
        max_gram_length=lengths[1],
        max_skip_count=skips,
        ngram_counts=[0, 2, 6],
        ngram_indexes=indexes,
        pool_strings=["a", "é", "a", "b", "b", "a", "a", "c", ""],
        **weights,
    )


def test_vectorizer_of_many_words_and_rows() -> None:
    """More pairs of words than a table has, and more results than are summed at once."""
    rng = np.random.default_rng(0)
    words = [f"w{number}" for number in range(1500)]
    pairs = [f"w{number}" for pair in enumerate(rng.permutation(1500)) for number in pair]
    rows = rng.choice([*words, "new"], (200, 30)).astype(object)
    rows[:, :20] = np.array(pairs, object).reshape(-1, 20)[rng.integers(0, 150, 200)]
    check(
        "TfIdfVectorizer",
        rows,
        mode="TF",
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=1,
        ngram_counts=[0, 1500],
        ngram_indexes=list(range(3000)),
        pool_strings=[*words, *pairs],
    )


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_vectorizer_of_rows_without_tokens(shape: tuple[int, ...]) -> None:
    pool: Any = {"ngram_counts": [0], "ngram_indexes": [1, 0], "pool_strings": ["a", "b"]}
    check("TfIdfVectorizer", np.empty(shape, object), mode="TF", **GRAMS, **pool)


@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "DF"},
        {"weights": [1.0]},
        {"ngram_indexes": [0, -1]},
        {"ngram_counts": [0, 3]},
        {"ngram_counts": [0, 1]},
        {"max_gram_length": 2},
        {"min_gram_length": 2},
        {"min_gram_length": 0},
        {"max_skip_count": -1},
        {"pool_strings": ["a", "a"]},
    ],
)
def test_vectorizers_that_are_refused(attributes: Any) -> None:
    pool: Any = {"ngram_counts": [0], "ngram_indexes": [1, 0], "pool_strings": ["a", "b"]}
    with pytest.raises(StringOperatorError):
        ours("TfIdfVectorizer", strings("a"), **{"mode": "TF", **GRAMS, **pool, **attributes})


# --- the others ---------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.text("a b,-", max_size=8), min_size=1, max_size=4),
    st.sampled_from([{}, {"delimiter": ","}, {"delimiter": ", "}, {"delimiter": " "}]),
    st.sampled_from([None, 0, 1, 2]),
)
def test_split(texts: list[str], delimiter: Any, most: int | None) -> None:
    limit = {} if most is None else {"maxsplit": most}
    check("StringSplit", strings(*texts), results=2, **delimiter, **limit)


@settings(max_examples=30, deadline=None)
@given(st.lists(TEXT, min_size=6, max_size=6), st.sampled_from([(3,), (1, 3), (2, 1), (2, 3)]))
def test_concat(texts: list[str], shape: tuple[int, ...]) -> None:
    other = strings(*texts)[: int(np.prod(shape))].reshape(shape)
    check("StringConcat", strings(*texts).reshape(2, 3), other)
    check("StringConcat", other, strings(*texts[:3]))


def test_concat_of_shapes_that_do_not_fit() -> None:
    with pytest.raises(StringOperatorError, match="do not fit"):
        ours("StringConcat", strings("a", "b"), strings("a", "b", "c"))
