"""Regular expressions, against RE2 inside onnxruntime's operators."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.strings.string_nodes import strings, theirs
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.strings.expressions import Expression, ExpressionError
from tunefarm.compiler.strings.operators import RUNS, StringOperatorError

TEXTS = strings(
    "", "a", "abcd", "aB\n -_.1", "éÉkK\u212a\u017fsßẞ", "a b  cd", "ǅ], ab1", "a.b+E", "\n\n"
)

SUPPORTED = [
    *("[a-zA-Z0-9_]+", "[^a-c_]+", "[a-z ]+"),
    *(r"\b\w\w+\b", "a|ab|abc", "(a|ab)(c|bcd)?", "a||b", "()", "(?i)k+"),
    *(r"\pL+", r"\P{L}+", r"\p{Greek}|a", r"[^\W]+", "[[:^alpha:]]+", "(?s).a", "(?m)^a", "a$"),
    *(r"\Ba", r"\z", "(?m)$", "x*", "a+?", "(?U)a+", "(a*)*b", r"\x{e9}", "(?P<x>a)b", "..", "."),
]


def check(pattern: str, texts: list[str]) -> None:
    array = strings(*texts)
    searched = "(?:.)" if pattern == "." else pattern  # by itself it stands for any character
    attributes: dict[str, Any] = {
        "mark": 0,
        "mincharnum": 1,
        "pad_value": "\x00",
        "tokenexp": searched,
    }
    (rows,) = theirs("Tokenizer", array, **attributes)
    (ours,) = RUNS["Tokenizer"](attributes)(array)
    assert ours.tolist() == rows.tolist()
    (whole,) = theirs("RegexFullMatch", array, pattern=pattern)
    expression = Expression(pattern)
    assert [expression.matches(text) for text in texts] == whole.tolist()


@pytest.mark.parametrize("pattern", SUPPORTED)
def test_matches_are_those_of_onnxruntime(pattern: str) -> None:
    check(pattern, TEXTS.tolist())


@pytest.mark.parametrize(
    "pattern", ["a**", "(", "a{3,2}", r"\1", "(?=a)", "[b-a]", "[b-a]+", "a{1001}"]
)
def test_what_re2_refuses_is_refused(pattern: str) -> None:
    with pytest.raises(Exception, match=r"(?i)tokenexp|pattern"):
        theirs("Tokenizer", TEXTS, mark=0, mincharnum=1, pad_value="", tokenexp=pattern)
    with pytest.raises(ExpressionError, match=r"\S"):
        Expression(pattern)
    with pytest.raises(StringOperatorError, match="cannot be used"):
        RUNS["Tokenizer"]({"mark": 0, "mincharnum": 1, "pad_value": "", "tokenexp": pattern})


def test_without_the_library_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(TunefarmError, match="install google-re2"):
        Expression("a")


ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w", r"\b", "^", "$", "é", r"\s", "c"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    several = st.lists(inner, min_size=1, max_size=3)
    repeated = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "*?"])
    return (
        several.map("".join)
        | several.map(lambda items: f"(?:{'|'.join(items)})")
        | st.builds(lambda item, times: f"({item}){times}", inner, repeated)
    )


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(ATOMS, _larger, max_leaves=6),
    st.lists(st.text("abcé \n-", max_size=8), min_size=1, max_size=4),
)
def test_drawn_expressions(pattern: str, texts: list[str]) -> None:
    check(pattern, texts)
