"""Regular expressions, against RE2 inside onnxruntime's operators."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.strings.string_nodes import strings, theirs
from tunefarm.compiler.strings.expressions import Expression, ExpressionError

TEXTS = strings(
    "", "a", "abcd", "aB\n -_.1", "éÉkK\u212a\u017fsßẞ", "a b  cd", "ǅ], ab1", "a.b+E", "\n\n"
)

SUPPORTED = [
    *(r"[a-zA-Z0-9_]+", r"\b\w\w+\b", "a|ab|abc", "(a|ab)(c|bcd)?", r"\w+", "[^a]+", "a||b", "()"),
    *("(?i)k+", "(?i)[a-c]+", "(?i:A)b", "(?i)é", "(?i)\u017f", r"(?i)\w+", "(?i)ß", "(?i-s)A."),
    *(r"\pL+", r"\p{Lu}", r"\P{L}+", r"\p{^Lu}+", r"[\pL\-]+", r"[^\W]+", r"[\d\s]+", r"\PN+"),
    *("[[:alpha:]]+", "[[:^alpha:]]+", "[[:word:][:space:]]+", "[]a]+", "[^]a]+", "[a-]+", "[+--]"),
    *("(?s).a", "(?m)^a", "^a", "a$", r"\Ba", r"\z", r"a\z", r"\A.", "(?m)$", "(?s:.)\n", "^*a"),
    *("a{2,3}", "a{1}b", "a{,2}", "a{0}", "x*", "a+?", "(?U)a+", "a{", "(a*)*b", "(?:ab){2,}?"),
    *(r"\x{e9}", r"\x41", r"\101", r"\07", r"\0", r"\Qa.b+\E+", r"\Qa.b", r"\.", r"\n", r"[\]\\]"),
    *("(?P<x>a)b", "(?<x>a)b", "..", r"[\x00-\x{10ffff}]", r"\S+", r"\D+", "(?i)[^k]+"),
]

REFUSED = [
    *("a**", "*a", "(", ")", "[", "a{3,2}", r"\y", r"\1", "(?=a)", "(?P<1 >a)", r"[a-\d]", "[b-a]"),
    *(
        "a{1001}",
        "(?-)a",
        "(?z)",
        r"\8",
        "[a",
        "[[:foo:]]",
        "x{2}{3}",
        "a+{2}",
        "a\\",
        "(?",
        r"\pX",
    ),
    *("(?i", "(?P<", r"\x{110000}", r"\xg", "a|*", "(?<!a)", r"\Z", r"[\b]"),
]


def tokens(expression: Expression, text: str) -> list[str]:
    found, start = [], 0
    while match := expression.search(text, start):
        begin, end = match
        found += [text[begin:end]] if end > begin else []
        start = end if end > begin else begin + 1
    return found


def check(pattern: str, texts: list[str]) -> None:
    array = strings(*texts)
    expression = Expression(pattern)
    searched = "(?:.)" if pattern == "." else pattern  # by itself it stands for any character
    (rows,) = theirs("Tokenizer", array, mark=0, mincharnum=1, pad_value="\x00", tokenexp=searched)
    assert [tokens(expression, text) for text in texts] == [
        [token for token in row if token != "\x00"] for row in rows.tolist()
    ]
    (whole,) = theirs("RegexFullMatch", array, pattern=pattern)
    assert [expression.matches(text) for text in texts] == whole.tolist()


@pytest.mark.parametrize("pattern", SUPPORTED)
def test_matches_are_those_of_re2(pattern: str) -> None:
    check(pattern, TEXTS.tolist())


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_re2_refuses_is_refused(pattern: str) -> None:
    with pytest.raises(Exception, match=r"(?i)tokenexp|pattern"):
        theirs("Tokenizer", TEXTS, mark=0, mincharnum=1, pad_value="", tokenexp=pattern)
    with pytest.raises(ExpressionError):
        Expression(pattern)


@pytest.mark.parametrize("pattern", [r"\p{Greek}", r"(?i)\pL", "(" * 200 + ")" * 200])
def test_what_is_not_supported_is_refused(pattern: str) -> None:
    with pytest.raises(ExpressionError):
        Expression(pattern)


def test_a_large_expression_is_refused() -> None:
    with pytest.raises(ExpressionError, match="too large"):
        Expression("(a{1000}){1000}")


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
