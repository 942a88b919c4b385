"""The page "Extend it": each worked example, typed from nothing by following it, works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tunefarm.tuner.docs.pages import PAGES
from tunefarm.tuner.packaging.build_backend import link_sources

PACKAGES = ("compiler", "configs", "db", "measure", "tuner")
EXAMPLES = ("operator", "scalar function", "schedule step", "sketch", "strategy", "runner")
_BLOCK = re.compile(
    r"^(?P<says>[^\n]*)\n\n?```(?P<language>py|bash)\n(?P<text>.*?)^```$", re.M | re.S
)
_LINE_OF = re.compile(r"`(?P<path>[\w/]+\.py)`(?P<how>, instead of `(?P<old>[^`]+)`)?:$")


def section(page: str, name: str) -> str:
    """The text below the heading "## A <name>" or "## An <name>"."""
    found = re.search(rf"^## An? {name}$(.*?)(?=^## |\Z)", page, re.M | re.S)
    assert found, f"extending.md has no worked example of a {name}"
    return found.group(1)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly) if name in ("strategy", "runner") else name
        for name in EXAMPLES
    ],
)
def test_worked_example_works(name: str, repository: Path, tmp_path: Path) -> None:
    page = (PAGES / "extending.md").read_text(encoding="utf-8")
    for package in PACKAGES:
        # With the bytecode that is there, which has its source's time: commands start sooner.
        unfinished = shutil.ignore_patterns("*.pyc.*")
        shutil.copytree(repository / package, tmp_path / package, ignore=unfinished)
    files, commands = 0, 0
    for block in _BLOCK.finditer(section(page, name)):
        if block["language"] == "bash":
            _run(block["text"], tmp_path)
            commands += 1
        else:
            _type(block["says"], block["text"], tmp_path)
            files += 1
    assert files and commands


def _type(says: str, text: str, root: Path) -> None:
    """Write a new file, or put the text in the place of a line of a file that is there."""
    where = _LINE_OF.search(says)
    assert where, f"no file is named before the example: {says!r}"
    path = root / where["path"]
    if where["old"] is None:
        assert not path.exists(), path
        path.write_text(text, encoding="utf-8")
        return
    before = path.read_text(encoding="utf-8")
    assert before.count(where["old"]) == 1, where["old"]
    path.write_text(before.replace(where["old"], text.rstrip("\n")), encoding="utf-8")


def _run(commands: str, root: Path) -> None:
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=root,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(link_sources(root)),
            "XDG_CACHE_HOME": str(root / "cache"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
