"""The page "Deployment": its programs, built as the page says, give what Python gives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tunefarm.compiler import load
from tunefarm.compiler.frontend.zoo import write_model
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.docs.pages import PAGES

PAGE = (PAGES / "deployment.md").read_text(encoding="utf-8")
SOURCES = {"c": "main.c", "cpp": "main.cpp", "cmake": "CMakeLists.txt", "rust": "main.rs"}
_LIMIT = 120.0  # seconds of one command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the C library of the page, the artifact of the same build, and the sources."""
    made = tmp_path_factory.mktemp("deployment")
    write_model("mlp", made / "mlp.onnx")
    build = ["build", "--model", str(made / "mlp.onnx"), "--untuned", "--threads", "2", "--output"]
    assert run_command(app, [*build, str(made / "mlp.tuned")]) == 0
    forms = ["--emit", "c-header+shared-library"]
    assert run_command(app, [*build, str(made / "mlp_c"), *forms]) == 0
    for language, name in SOURCES.items():
        (block,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)
        (made / name).write_text(block, encoding="utf-8")
    return made


def commands_of(title: str) -> str:
    """The commands of the section "## <title>"."""
    found = re.search(
        rf"^## {re.escape(title)}$.*?^```console\n((?:cc|c\+\+|cmake|rustc) .*?)^```$",
        PAGE,
        re.M | re.S,
    )
    assert found, title
    return found[1]


@pytest.mark.parametrize(
    ("title", "compiler"),
    [("C", "cc"), ("C++", "c++"), ("CMake", "cmake"), ("Rust", "rustc")],
)
def test_a_program_gives_what_python_gives(title: str, compiler: str, folder: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands_of(title)],
        cwd=folder,
        env={**os.environ, "CFLAGS": "-Werror", "CXXFLAGS": "-Wall -Wextra -Werror"},
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    x = np.full((1, 784), 0.5, np.float32)
    expected = load(folder / "mlp.tuned").run({"input": x})["logits"][0, 0]
    assert float(ran.stdout.splitlines()[-1]) == pytest.approx(float(expected), abs=1e-6)


def test_other_languages_use_the_names_of_the_header(folder: Path) -> None:
    """Go is not compiled here, but what it calls is in the header."""
    (block,) = re.findall(r"^```go\n(.*?)^```$", PAGE, re.M | re.S)
    header = (folder / "mlp_c" / "mlp.h").read_text(encoding="utf-8")
    names = set(re.findall(r"C\.(?:struct_|sizeof_struct_)?(mlp_\w+|MLP_\w+)", block))
    assert {"mlp_io", "mlp_run", "MLP_OK"} <= names
    for name in names:
        assert re.search(rf"\b{name}\b", header), name


def test_the_server_is_python() -> None:
    (block,) = re.findall(r"^```py\n(.*?)^```$", PAGE, re.M | re.S)
    compile(block, "serve.py", "exec")
