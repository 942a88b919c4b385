"""Every public name says what it is: classes, functions, methods of modules without underscore.

A method may leave that to the class or protocol that it implements. Functions that a decorator
enters into a table are found by their operator's or network's name and called by nobody.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

PACKAGES = ("compiler", "configs", "db", "measure", "tuner")
_TABLES = {"converter", "dynamic_operand", "overload"}
"""Decorators of what is an entry of a table, or has its description elsewhere."""


class Sources:
    """The classes and functions below a folder, with what they inherit by name."""

    def __init__(self, root: Path) -> None:
        paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
        self._trees = {
            path.relative_to(root).as_posix(): _without_bodies(
                ast.parse(path.read_text(encoding="utf-8"))
            )
            for path in paths
        }
        self._classes: dict[str, list[ast.ClassDef]] = {}
        for tree in self._trees.values():
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    self._classes.setdefault(node.name, []).append(node)

    def undocumented(self) -> list[str]:
        """Public names without a docstring, as "file:line: name"."""
        return [
            f"{name}:{node.lineno}: {said}"
            for name, tree in self._trees.items()
            if not any(part.startswith("_") and part != "__init__.py" for part in name.split("/"))
            for said, node, owner in _public(tree)
            if not ast.get_docstring(node) and not (owner and self._is_told(owner, node.name))
        ]

    def _is_told(self, owner: ast.ClassDef, method: str) -> bool:
        """Whether a base of the class, or a protocol that it implements, describes the method."""
        if any(_describes(base, method) for base in self._bases(owner)):
            return True
        own = _methods(owner).keys() | {m for base in self._bases(owner) for m in _methods(base)}
        return any(
            _describes(protocol, method) and _methods(protocol).keys() <= own
            for protocol in self._protocols()
        )

    def _bases(self, owner: ast.ClassDef) -> Iterator[ast.ClassDef]:
        for base in map(_name_of, owner.bases):
            for found in self._classes.get(base, ()):
                if found is not owner:
                    yield found
                    yield from self._bases(found)

    def _protocols(self) -> Iterator[ast.ClassDef]:
        for found in self._classes.values():
            yield from (node for node in found if "Protocol" in map(_name_of, node.bases))


def _without_bodies(tree: ast.Module) -> ast.Module:
    """Of functions and methods the first statement alone: what else is kept takes seconds."""
    for node in tree.body:
        for member in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(member, ast.FunctionDef):
                del member.body[1:]
    return tree


def _public(
    tree: ast.Module,
) -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef, ast.ClassDef | None]]:
    for node in tree.body:
        if not _is_public(node):
            continue
        yield node.name, node, None
        if not isinstance(node, ast.ClassDef):
            continue
        for member in node.body:
            if _is_public(member):
                yield f"{node.name}.{member.name}", member, node


def _is_public(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.ClassDef]:
    if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
        return False
    return not any(_name_of(decorator) in _TABLES for decorator in node.decorator_list)


def _methods(owner: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}


def _describes(owner: ast.ClassDef, method: str) -> bool:
    found = _methods(owner).get(method)
    return found is not None and bool(ast.get_docstring(found))


def _name_of(node: ast.expr) -> str:
    """The last name of a base or decorator: `a.B[c]` and `a.B(c)` are B."""
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def test_every_public_name_has_a_docstring(repository: Path) -> None:
    assert Sources(repository).undocumented() == []


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("def f(): pass", ["f"]),
        ("def f():\n    'Told.'", []),
        ("def _f(): pass", []),
        ("class A:\n    'Told.'\n    def f(self): pass", ["A.f"]),
        ("class A:\n    def f(self):\n        'Told.'", ["A"]),
        (
            "class A:\n    'Told.'\n    def f(self): 'Told.'\n"
            "class B(A):\n    'Told.'\n    def f(self): pass\n    def g(self): pass",
            ["B.g"],
        ),
        (
            "class P(Protocol):\n    'Told.'\n    def f(self): 'Told.'\n    def g(self): 'Told.'\n"
            "class A:\n    'Told.'\n    def f(self): pass\n    def g(self): pass\n"
            "class B:\n    'Told.'\n    def f(self): pass",
            ["B.f"],
        ),
        ("@converter('Cross', 1)\ndef cross(node, graph): pass", []),
    ],
)
def test_names_without_docstring_are_found(tmp_path: Path, source: str, missing: list[str]) -> None:
    (tmp_path / "tuner").mkdir()
    (tmp_path / "tuner/a.py").write_text(source)
    found = Sources(tmp_path).undocumented()
    assert [line.rpartition(" ")[2] for line in found] == missing
