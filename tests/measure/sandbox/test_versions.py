"""What makes one installation another one: of a machine of a farm, and of a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tunefarm.measure.farm.ray_nodes import facts_of
from tunefarm.measure.sandbox import versions as module
from tunefarm.measure.sandbox.versions import (
    COMPILER,
    TUNEFARM,
    Installation,
    differences,
    installation,
    versions,
)

SAYS = "\nimport json\nprint(json.dumps((package_folder(), versions())))\n"


def make_package(folder: Path) -> Path:
    """A package of the name tunefarm that nobody can import."""
    package = folder / "tunefarm"
    (package / "compiler").mkdir(parents=True)
    (package / "measure").mkdir()
    (package / "__init__.py").write_text('__version__ = "9.9"\nraise RuntimeError("imported")\n')
    (package / "compiler/version.py").write_text('VERSION = "77"\n')
    (package / "measure/worker.py").write_text("SLOTS = 1\n")
    return package


def found_by(path: Path | None) -> Installation:
    """What an interpreter says whose import path has this folder first; None: the library alone."""
    environment = {**os.environ, "PYTHONPATH": str(path)}
    isolated = () if path is not None else ("-S", "-E")
    done = subprocess.run(
        [sys.executable, *isolated, "-P", "-c", Path(module.__file__).read_text() + SAYS],
        env=environment,
        capture_output=True,
        check=True,
        timeout=60,
    )
    return Installation(*json.loads(done.stdout))


def test_a_machine_differs_in_nothing_from_itself() -> None:
    here = versions()
    assert differences(here, here) == ""
    assert all(here.values()) and not any("missing" in value for value in here.values())
    assert installation().difference(installation()) == ""


def test_a_line_says_what_differs() -> None:
    here = versions()
    there = {**here, COMPILER: "0", "llvmlite": "0.1"}
    said = differences(here, there)
    assert said.startswith(f"the compiler is {here[COMPILER]} here and 0 there, llvmlite is ")
    assert differences(here, {}).count("unknown there") == len(here)


def test_another_package_of_the_name_is_read_and_not_imported(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    there = found_by(tmp_path)
    assert there.folder == str(package)
    assert there.versions[COMPILER] == "77"
    assert there.versions[TUNEFARM].startswith("9.9 (files ")
    here = installation()
    assert f"from {here.folder} here and {package} there" in here.difference(there)


def test_an_edited_checkout_is_another_one(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    before = found_by(tmp_path)
    (package / "measure/worker.py").write_text("SLOTS = 2\n")
    edited = found_by(tmp_path)
    assert before.versions[TUNEFARM] != edited.versions[TUNEFARM]
    assert before.versions[COMPILER] == edited.versions[COMPILER]
    (package / "measure/worker.py").rename(package / "measure/renamed.py")
    assert found_by(tmp_path).versions[TUNEFARM] != edited.versions[TUNEFARM]


def test_an_interpreter_without_tunefarm_says_so() -> None:
    there = found_by(None)
    assert there.folder == "" and there.versions[COMPILER] == "missing"
    assert installation().difference(there).endswith("and not found there")


def test_a_node_of_another_version_is_refused_with_what_differs() -> None:
    here = installation()
    refused = facts_of((here.folder, {**here.versions, COMPILER: "0"}, None))
    assert refused == f"the compiler is {here.versions[COMPILER]} here and 0 there"
