"""Programs have modules named as parts of tunefarm are: neither sees those of the other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tests.processes import python

NAMES = ("compiler", "configs", "db", "measure", "tuner")
LIBRARIES = ("numpy", "queue", "ray", "tunefarm")
TRAP = """
import pathlib
with pathlib.Path({marker!r}).open("a") as file:
    file.write({name!r} + "\\n")
raise ImportError("a module of the program was imported by tunefarm")
"""
WORK = """
import json, sys, warnings
import numpy as np
import tunefarm

warnings.simplefilter("ignore", tunefarm.UntunedWarning)
tunefarm.tune("m.onnx", db="t.db", config="ci", trials=3, runner="ray", seed=1)
tunefarm.build("m.onnx", db="t.db").save("m.tuned")
executable = tunefarm.load("m.tuned")
executable.run({name: np.zeros(t.shape, np.float32) for name, t in executable.inputs.items()})
session = tunefarm.InferenceSession("m.tuned")
print(json.dumps(sorted(sys.modules)))
"""
SERVER = """
import sys
import compiler, configs, db, measure, tuner
from configs import prod
import numpy as np
import tunefarm

executable = tunefarm.load(sys.argv[1])
executable.run({name: np.zeros(t.shape, np.float32) for name, t in executable.inputs.items()})
own = (compiler, configs, db, measure, tuner, prod)
print([module.__name__ for module in own if module.MINE != "the program's"])
"""


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.nightly
def test_no_process_of_a_job_a_build_or_a_load_imports_a_bare_name(tmp_path: Path) -> None:
    """Traps lie first on the import path of this program, of its children and of Ray's workers.

    The folder that it runs in has libraries' names as well, and a tunefarm.
    """
    traps, folder, marker = tmp_path / "traps", tmp_path / "folder", tmp_path / "imported"
    for parent, names in ((traps, NAMES), (folder, (*NAMES, *LIBRARIES))):
        for name in names:
            (parent / name).mkdir(parents=True)
            (parent / name / "__init__.py").write_text(TRAP.format(marker=str(marker), name=name))
    onnx.save(tiny_model(), folder / "m.onnx")
    path = os.pathsep.join([str(traps), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = python("-P", "-c", WORK, cwd=folder, timeout=400, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert not marker.exists(), marker.read_text()
    modules = json.loads(done.stdout.splitlines()[-1])
    assert {name.split(".")[0] for name in modules}.isdisjoint(NAMES)
    assert "tunefarm.compiler" in modules


def test_a_server_with_modules_of_these_names_loads_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunefarm.compiler import build

    monkeypatch.chdir(tmp_path)
    onnx.save(tiny_model(), "m.onnx")
    build("m.onnx").save(tmp_path / "m.tuned")
    program = tmp_path / "program"
    for file in ("compiler.py", "db.py", "measure.py", "configs/__init__.py", "tuner/__init__.py"):
        (program / file).parent.mkdir(parents=True, exist_ok=True)
        (program / file).write_text('MINE = "the program\'s"\n')
    (program / "configs" / "prod.py").write_text('MINE = "the program\'s"\n')
    (program / "server.py").write_text(SERVER)
    done = python("server.py", str(tmp_path / "m.tuned"), cwd=program)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
