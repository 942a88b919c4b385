"""The API reference: every public name, with its signature and docstring."""

from __future__ import annotations

import inspect

import tunefarm
from tunefarm import compiler, tuner
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.tuner.docs.references import api_page, public_names

PAGE = api_page()


def test_names_are_those_of_the_package() -> None:
    names = public_names()
    assert set(names) >= {*tuner.__all__, *compiler.__all__} - {"VERSION"}
    assert "replace_onnxruntime" in names and "__version__" not in names
    for name, item in names.items():
        assert getattr(tunefarm, name) is item


def test_every_name_has_a_signature_and_a_docstring() -> None:
    for name, item in public_names().items():
        assert inspect.getdoc(item), name
        assert f"## tunefarm.{name}\n\n```text\n" in PAGE
        if not isinstance(item, type):
            assert f"\n{name}(" in PAGE


def test_methods_of_an_executable_are_there() -> None:
    for method in ("run", "bind", "profile", "save"):
        assert hasattr(Executable, method)
        assert f"\n |  {method}(self" in PAGE
