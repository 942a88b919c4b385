"""Which C compiler links for a target, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.targets import target_named
from tunefarm.compiler.errors import ExportError
from tunefarm.compiler.runtime.machine.toolchain import find_toolchain
from tunefarm.compiler.target import host_target

HOST = host_target()
ARM = target_named("armv8-neon")
X86 = target_named("x86-64-v3")
OTHER = X86 if HOST.triple.startswith("aarch64") else ARM
ARCHITECTURE = OTHER.triple.split("-")[0]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is all of PATH, but for the shell."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def add_tool(folder: Path, name: str, machine: str = "") -> None:
    """A program that tells what it makes code for."""
    (folder / name).write_text(f"#!/bin/sh\necho {machine}\n")
    (folder / name).chmod(0o755)


def test_code_for_this_machine_is_linked_by_its_own_compiler() -> None:
    found = find_toolchain(HOST, static=True)
    assert (found.command, found.objcopy) == ("cc", "objcopy")


def test_the_cross_compiler_is_found_by_its_usual_name(tools: Path) -> None:
    add_tool(tools, f"{ARCHITECTURE}-linux-gnu-gcc", f"{ARCHITECTURE}-linux-gnu")
    add_tool(tools, f"{ARCHITECTURE}-linux-gnu-objcopy")
    found = find_toolchain(OTHER, static=True)
    assert found.command == f"{ARCHITECTURE}-linux-gnu-gcc"
    assert found.objcopy == f"{ARCHITECTURE}-linux-gnu-objcopy"


def test_clang_serves_where_there_is_no_other(tools: Path) -> None:
    add_tool(tools, "clang", f"{ARCHITECTURE}-linux-gnu")
    add_tool(tools, "llvm-objcopy")
    found = find_toolchain(OTHER, static=True)
    assert found.command == f"clang --target={ARCHITECTURE}-linux-gnu"
    assert found.objcopy == "llvm-objcopy"


def test_a_named_compiler_is_taken_with_its_arguments_and_its_objcopy(tools: Path) -> None:
    add_tool(tools, "own-linux-gcc-13", f"{ARCHITECTURE}-own-linux-gnu")
    add_tool(tools, "own-linux-objcopy")
    found = find_toolchain(OTHER, "own-linux-gcc-13 -march=native", static=True)
    assert found.compiler == ("own-linux-gcc-13", "-march=native")
    assert found.objcopy == "own-linux-objcopy"


@pytest.mark.parametrize("static", [False, True])
def test_a_missing_cross_compiler_is_one_readable_line(tools: Path, static: bool) -> None:
    expected = rf"no {ARCHITECTURE}-linux-gnu-gcc, and no clang \(apt-get install gcc-.*--cc COMP"
    with pytest.raises(ExportError, match=expected) as refused:
        find_toolchain(OTHER, static=static)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("compiler", ["missing-gcc", "", "unclosed '"])
def test_a_named_compiler_that_is_not_there_is_refused(tools: Path, compiler: str) -> None:
    with pytest.raises(ExportError, match=r"there is no C compiler .* on PATH"):
        find_toolchain(OTHER, compiler)


def test_a_compiler_for_other_machines_is_refused(tools: Path) -> None:
    add_tool(tools, "cc", "riscv64-linux-gnu")
    add_tool(tools, "silent")
    with pytest.raises(ExportError, match="cc makes code for riscv64-linux-gnu, the model is"):
        find_toolchain(OTHER, "cc")
    with pytest.raises(ExportError, match="silent is not a C compiler"):
        find_toolchain(OTHER, "silent")


def test_objcopy_is_asked_for_only_where_it_is_needed(tools: Path) -> None:
    add_tool(tools, f"{ARCHITECTURE}-linux-gnu-gcc", f"{ARCHITECTURE}-linux-gnu")
    assert find_toolchain(OTHER).objcopy == ""
    with pytest.raises(ExportError, match=f"there is no {ARCHITECTURE}-linux-gnu-objcopy on PATH"):
        find_toolchain(OTHER, static=True)
