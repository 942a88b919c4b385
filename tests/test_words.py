"""Text that people read uses the field's terms: no phrase of an older vocabulary is left in it.

Text is: a page, the README, a template, a docstring of a module or of a public name, and every
string in code that has a space in it (help, errors, logs, reports, generated headers).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOTS = ("compiler", "configs", "db", "measure", "tuner", "README.md")
_PAGES = {".md", ".jinja", ".mako", ".html", ".js"}
_PHRASES = (
    "known at run time",
    "open sizes?",
    "artefacts?",
    "numerics",
    "spelled[- ]out",
    "sums of digits",
    "functions? by name",
    "takes? turns",
    "in turns",
    "in the place of",
    "what there is",
    "have it do",
    "of yours",
    "the house",
    "rooms",  # of code; "room" is space that is left
    "mend",
    "a night(?:'s)?",
    "scattered(?! axis)",  # an axis is scattered by the operator Scatter
    "others over ours",
    "best peer / ours",
    "texts",
    "greatest(?! common)",  # the greatest common divisor
    "(?<!at )least(?![- ]squares?| recently| significant| common)",
    "trials? lost to noise",
    "it says so",
    "is told",
    "what measures",
    "beside",
)
PHRASE = re.compile(rf"\b(?:{'|'.join(_PHRASES)})\b".replace(" ", r"\s"), re.IGNORECASE)
IDENTIFIER = re.compile(
    r"`[^`]*`"  # a code span
    r"|([\"'])\w+\1"  # a JSON key or a value
    r"|(?<!\w)--?\w[\w-]*"  # an option
    r"|\w+(?:[./]\w+)+"  # a dotted name, a path
    r"|\w+(?=[=(])"  # a keyword, a function
)
_NAMES = re.compile(r"(?=.*\w_\w)[\w ]+")
"""A string that lists names, such as the columns of a table."""


def findings(name: str, source: str) -> Iterator[str]:
    """Each phrase in the text of one file, as "file:line: phrase: the text around it"."""
    joined = re.sub(r"[\"']\s*\n\s*f?[\"']", "", source)
    if not PHRASE.search(re.sub(r" *\n *", "\n", joined)):
        return  # most files: parsing them all takes seconds
    for line, given in _strings(ast.parse(source)) if name.endswith(".py") else [(1, source)]:
        text = re.sub(r" *\n *", "\n", given)
        prose = IDENTIFIER.sub(lambda found: re.sub(r"\S", "·", found[0]), text)
        for phrase in PHRASE.finditer(prose):
            start, end = phrase.span()
            around = " ".join(text[max(start - 30, 0) : end + 30].split())
            found = " ".join(phrase[0].lower().split())
            yield f"{name}:{line + text.count(chr(10), 0, start)}: {found}: {around}"


def _strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The public descriptions, and the strings with a space that are no descriptions."""
    described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    public = {id(node) for node in _descriptions(tree)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        text = " " in node.value and not _NAMES.fullmatch(node.value)
        if id(node) in public or (id(node) not in described and text):
            yield node.lineno, node.value


def _descriptions(owner: ast.Module | ast.ClassDef | ast.FunctionDef) -> Iterator[ast.expr]:
    """The docstring of a module, class or function, and those of its public members."""
    private = False
    for node in owner.body:
        match node:
            case ast.Expr(value=ast.Constant(value=str())) if not private:
                yield node.value
            case ast.ClassDef() | ast.FunctionDef():
                if not node.name.startswith("_") and not isinstance(owner, ast.FunctionDef):
                    yield from _descriptions(node)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                private = name.startswith("_")
                continue
        private = False


@pytest.mark.parametrize("root", ROOTS)
def test_text_uses_the_fields_terms(repository: Path, root: str) -> None:
    paths = [repository / root, *sorted((repository / root).rglob("*"))]
    found = [
        finding
        for path in paths
        if path.suffix in _PAGES | {".py"} and path.is_file()
        for finding in findings(
            path.relative_to(repository).as_posix(), path.read_text(encoding="utf-8")
        )
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "source", "found"),
    [
        ("a.md", "one\n\nA size known at\nrun time.", ["a.md:3: known at run time"]),
        ("a.md", "The least, at least; least-squares. Texts", ["least", "texts"]),
        ("a.py", 'class A:\n    """At\n    least; of\n    yours."""', ["a.py:3: of yours"]),
        ("a.md", "`--numerics`, `texts` and numerics=1", []),
        ("a.py", '"Takes turns."', ["a.py:1: takes turns"]),
        ("a.py", 'def f():\n    """The greatest."""', ["a.py:2: greatest"]),
        ("a.py", 'def _f():\n    """The greatest."""', []),
        ("a.py", 'class A:\n    def f(self): "Texts."', ["a.py:2: texts"]),
        ("a.py", 'class _A:\n    def f(self): "Texts."', []),
        ("a.py", 'A = 1\n"""Texts."""\n_B = 2\n"""Texts."""', ["a.py:2: texts"]),
        ("a.py", 'def _f():\n    raise E(f"{a}: numerics of {b}")', ["a.py:2: numerics"]),
        ("a.py", 'a = b["numerics"]', []),
        ("a.py", 'a = "threads numerics compiler_version".split()', []),
        ("a.py", "a = '{\"numerics\": 1}'", []),
    ],
)
def test_phrases_are_found_in_text_and_only_there(name: str, source: str, found: list[str]) -> None:
    lines = list(findings(name, source))
    assert len(lines) == len(found)
    assert all(part in line for part, line in zip(found, lines, strict=True))
