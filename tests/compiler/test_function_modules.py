"""Modules that register functions: loaded once, in children too, and refused in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tunefarm.compiler import function_modules, unregister_function
from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.foreign_functions import registered_functions
from tunefarm.compiler.function_modules import load_modules, loaded_modules

REGISTERS = """
import tunefarm
tunefarm.register_function(
    "file.domain::Twice", lambda x: 2 * x, lambda operands, attributes: [operands[0]], version="1"
)
"""


@pytest.fixture(autouse=True)
def forgets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither this process nor its children, which load what it has, keep them for other tests."""
    monkeypatch.setattr(function_modules, "_LOADED", {})
    yield
    unregister_function("file.domain::Twice")


def test_file_is_loaded_once_and_its_functions_are_there(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(REGISTERS)
    load_modules([str(path)])
    assert "file.domain::Twice" in registered_functions() and str(path) in loaded_modules()
    load_modules([str(path)])  # would raise: the name is taken


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "there is no such file"),
        ("raise ValueError('no luck')", "raised ValueError: no luck"),
        ("x = ", "raised SyntaxError"),
        ("import sys; sys.exit(3)", "raised SystemExit: 3"),
        ("x = 1", "registers no function"),
    ],
)
def test_bad_file_is_refused_by_name(tmp_path: Path, content: str | None, reason: str) -> None:
    path = tmp_path / "mine.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match=f"--functions .*mine.py:? .*{reason}"):
        load_modules([str(path)])
    assert str(path) not in loaded_modules()


def test_missing_module_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match=r"--functions no_such_module_anywhere: .*No module"):
        load_modules(["no_such_module_anywhere"])
