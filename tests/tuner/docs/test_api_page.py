"""The API reference: every public name, with its signature and docstring."""

from __future__ import annotations

import enum
import re

import tunefarm
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.tuner.docs.references import api_page, public_names

PAGE = api_page()


def test_names_are_those_of_the_package() -> None:
    names = public_names()
    assert set(names) == set(tunefarm.__all__) - {"__version__"}
    for name, item in names.items():
        assert getattr(tunefarm, name) is item


def test_every_name_has_a_signature_and_a_docstring() -> None:
    for name, item in public_names().items():
        section = re.search(rf"^## tunefarm\.{name}\n(.*?)(?=^## )", PAGE, re.M | re.S)
        assert section, name
        prose = re.sub(r"^```.*?^```$", "", section[1], flags=re.M | re.S).strip()
        assert prose and not prose.startswith("#"), f"{name} has no docstring"
        if not isinstance(item, type) or not issubclass(item, enum.Enum | Warning):
            assert f"tunefarm.{name}(" in section[1]


def test_methods_of_an_executable_are_there() -> None:
    for method in ("run", "bind", "profile", "save"):
        assert hasattr(Executable, method)
        assert f"\n#### Executable.{method}\n" in PAGE
    assert "#### Executable._" not in PAGE


def test_signatures_are_python() -> None:
    blocks = re.findall(r"^#+ [\w.]+\n\n```py\n(.*?)\n```$", PAGE, re.M | re.S)
    assert len(blocks) > 50
    for block in blocks:
        call = block.replace("tunefarm.", "", 1)
        compile(f"def {call}: ...", "signature", "exec", dont_inherit=True)
