"""The boundaries of the design, which import-linter and ruff check by pyproject.toml.

Both are run on sources that break each rule, too.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import python

PACKAGES = ("compiler", "configs", "db", "measure", "tuner")
TOP_LEVEL = {
    *PACKAGES,
    "tests",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    ".ci",
    ".github",
    ".git",
    ".gitignore",
}
LEFT_BY_TOOLS = {
    ".editable",
    "build",
    "tunefarm.egg-info",
    "__pycache__",
    ".import_linter_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
    ".venv",
    ".venv-test",
}
FUNCTION_LINES = 60
"""Of a function that says no reason to have more; ruff limits the ways through it."""
IMPORT = re.compile(r"^ *(?:from|import) ([\w.]+)", re.MULTILINE)


def broken_contracts(folder: Path, *import_path: Path) -> str:
    """What import-linter says of broken contracts of `folder`, of the package that is found."""
    paths = [*map(str, import_path), os.environ["PYTHONPATH"]]
    checked = python(
        "-c",
        "import sys, importlinter.cli as cli; sys.exit(cli.lint_imports())",
        cwd=folder,
        timeout=300,
        PYTHONPATH=os.pathsep.join(paths),
    )
    assert "Contracts: " in checked.stdout, checked.stdout + checked.stderr
    return " ".join(checked.stdout.split()) if checked.returncode else ""


def lint(repository: Path, name: str, source: str) -> list[str]:
    """The rules of ruff that a file of this name and text breaks, as "line: rule"."""
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "ruff", "check", "--output-format=concise"),
            *("--select=D1,S1,SLF,TID", "--stdin-filename", name, "-"),
        ],
        cwd=repository,
        input=f'"""A file."""\n{source}\n',
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    found = re.findall(rf"^{name}:(\d+):\d+: (\w+)", checked.stdout, re.MULTILINE)
    return [f"{int(line) - 1}: {rule}" for line, rule in found]


def unexpected_top_level(root: Path) -> list[str]:
    """Names at the top level that the design does not have, of those that belong to the project.

    That is what git tracks; where there is no repository, sources: a checkout may hold models,
    databases and whatever else its user keeps there.
    """
    names = _tracked_top_level(root) or {
        path.name for path in root.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))
    }
    return sorted(names - TOP_LEVEL - LEFT_BY_TOOLS)


def _tracked_top_level(root: Path) -> set[str]:
    """Empty where git is not, or tracks nothing."""
    if not (root / ".git").exists() or shutil.which("git") is None:
        return set()
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return {name.split("/")[0] for name in listed.stdout.split("\0") if name}


def test_sources_keep_the_boundaries(repository: Path) -> None:
    assert broken_contracts(repository) == ""


def test_top_level_is_fixed(repository: Path) -> None:
    assert unexpected_top_level(repository) == []


def test_tests_import_what_is_installed_and_of_the_compiler_no_tuner(repository: Path) -> None:
    """The repository is on the import path of tests: a bare `compiler` would be a second one."""
    tests = repository / "tests"
    of_users = {  # they hold programs in text
        tests / "end_to_end" / "test_import_names.py",
        tests / "tuner" / "packaging" / "test_packages.py",
    }
    for path in {*tests.rglob("*.py")} - of_users:
        modules = [
            module
            for module in IMPORT.findall(path.read_text())
            if not module.startswith("tunefarm.tuner.packaging")
        ]
        assert not {module.split(".")[0] for module in modules} & {*PACKAGES}, path
        if path.is_relative_to(tests / "compiler"):
            above = ("tunefarm.tuner", "tests.tuner")
            assert not [module for module in modules if module.startswith(above)], path


def test_no_stray_package_markers_are_missing(repository: Path) -> None:
    """A folder of sources without __init__.py would not be installed, nor checked."""
    for package in PACKAGES:
        sources = list((repository / package).rglob("*.py"))
        assert sources, package
        for path in sources:
            assert (path.parent / "__init__.py").exists(), path


BREACHES = [
    # The file, what it imports, and on which line; "" is a file that has no place.
    ("compiler/expr/a1", "import tunefarm.db.store", "tunefarm.db.store (l.1)"),
    ("measure/farm/a1", "from tunefarm.db.store import Store", "tunefarm.db.store (l.1)"),
    ("db/a1", "from tunefarm.compiler.errors import InputError", "tunefarm.compiler.errors (l.1)"),
    ("tuner/search/a1", "import compiler", "compiler (l.1)"),
    ("tuner/search/a3", "import tunefarm", "tunefarm (l.1)"),
    ("tuner/search/a5", "import tests.examples", "tests (l.1)"),
    ("compiler/expr/a4", "def f():\n    if True:\n        import onnx.helper", "onnx (l.3)"),
    (
        "compiler/expr/a5",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tunefarm.tuner.job",
        "tunefarm.tuner.job (l.3)",
    ),
    ("measure/farm/a3", "import pickle", "pickle (l.1)"),
    ("compiler/graph/a1", "from tunefarm.compiler import plan", "tunefarm.compiler.plan (l.1)"),
    (
        "compiler/plan/sizes/a1",
        "from tunefarm.compiler.plan.fusion import fuse",
        "tunefarm.compiler.plan.fusion.fuse (l.1)",
    ),
    (
        "compiler/runtime/spec/a1",
        "from tunefarm.compiler.runtime.entry.entry import entry_of",
        "tunefarm.compiler.runtime.entry.entry (l.1)",
    ),
    ("compiler/runtime/a1", "", ""),
    ("compiler/helpers/__init__", "", ""),
]


@pytest.fixture(scope="module")
def report_of_breaches(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What import-linter says of a copy of the sources in which each of `BREACHES` is made."""
    folder = tmp_path_factory.mktemp("breaches")
    shutil.copyfile(repository / "pyproject.toml", folder / "pyproject.toml")
    for package in PACKAGES:
        for path in (repository / package).rglob("*.py"):
            copied = folder / "tunefarm" / path.relative_to(repository)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copied)
    (folder / "tunefarm" / "__init__.py").touch()
    for name, source, _ in BREACHES:
        breach = folder / "tunefarm" / f"{name}.py"
        breach.parent.mkdir(exist_ok=True)
        breach.write_text(source)
    return broken_contracts(folder, folder)


@pytest.mark.parametrize(("name", "imported"), [(name, what) for name, _, what in BREACHES])
def test_forbidden_import_is_found(report_of_breaches: str, name: str, imported: str) -> None:
    module = f"tunefarm.{name.removesuffix('/__init__').replace('/', '.')}"
    said = f"{module} -> {imported}" if imported else f"not listed as layers: - {module} ("
    assert said in report_of_breaches


@pytest.mark.parametrize(
    ("name", "source", "breach"),
    [
        ("db/a.py", "from .. import compiler", "1: TID252"),
        ("db/a.py", "def _f(store):\n    return store._engine", "2: SLF001"),
        ("tuner/job.py", "import importlib\nimportlib.import_module('ray')", "2: TID251"),
        ("tuner/job.py", "exec('import ray')", "1: S102"),
        ("tuner/job.py", "import os\nos.environ['A']", "2: TID251"),
        ("tuner/a.py", "def f(): pass", "1: D103"),
        ("tuner/a.py", "class A:\n    'Said.'\n    def f(self): pass", "3: D102"),
    ],
)
def test_breach_of_a_lint_rule_is_found(
    repository: Path, name: str, source: str, breach: str
) -> None:
    assert lint(repository, name, source) == [breach]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("db/a.py", "class A:\n    'Said.'\n    def _f(self):\n        return self._x"),
        ("configs/settings.py", "import os\nos.environ['A']"),
        ("tuner/a.py", "def _f(): pass"),
        ("compiler/schedule/steps/a.py", "class A:\n    'Said.'\n    def apply(self): pass"),
        (
            "compiler/frontend/operators/a.py",
            "from tunefarm.compiler.frontend.converter import converter\n"
            "@converter('Cross', 1)\ndef cross(node, graph): pass",
        ),
    ],
)
def test_what_is_allowed_passes(repository: Path, name: str, source: str) -> None:
    assert lint(repository, name, source) == []


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All below a statement, and no expression."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for inner in getattr(node, name, ()):
            yield inner
            yield from statements(inner)


def long_functions(source: str) -> list[str]:
    """Functions of more than `FUNCTION_LINES` lines, without a comment above that says why."""
    lines, found = source.splitlines(), []
    for node in statements(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef) or node.end_lineno is None:
            continue
        first = min(node.lineno, *(each.lineno for each in node.decorator_list), node.end_lineno)
        is_long = node.end_lineno - node.lineno >= FUNCTION_LINES
        if is_long and not lines[first - 2].lstrip().startswith("# Long: "):
            found.append(node.name)
    return found


def test_long_functions_say_why(repository: Path) -> None:
    for package in PACKAGES:
        for path in (repository / package).rglob("*.py"):
            source = path.read_text()
            if source.count("\n") > FUNCTION_LINES:
                assert long_functions(source) == [], path


@pytest.mark.parametrize(
    ("above", "lines", "found"),
    [("", 60, []), ("", 61, ["f"]), ("# Long: a text.\n", 61, []), ("# A text.\n", 61, ["f"])],
)
def test_a_function_above_60_lines_is_found(above: str, lines: int, found: list[str]) -> None:
    body = "    pass\n" * (lines - 1)
    assert long_functions(f"{above}@decorated\ndef f():\n{body}") == found


def test_no_module_is_imported_by_a_computed_name(repository: Path) -> None:
    """Ruff knows `importlib.import_module` and `exec`, and not this one."""
    for package in PACKAGES:
        for path in (repository / package).rglob("*.py"):
            assert "__import__(" not in path.read_text(), path


def test_unexpected_top_level_names_are_found(tmp_path: Path) -> None:
    for name in ("compiler", "utils", ".pytest_cache"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "source.py").touch()
    (tmp_path / "setup.py").touch()
    assert unexpected_top_level(tmp_path) == ["setup.py", "utils"]


@pytest.mark.parametrize("tracked", [True, False])
def test_what_a_user_keeps_in_a_checkout_is_not_looked_at(tmp_path: Path, tracked: bool) -> None:
    (tmp_path / "compiler").mkdir()
    (tmp_path / "compiler" / "source.py").touch()
    if tracked:
        for command in (["init", "--quiet"], ["add", "compiler"]):
            subprocess.run(["git", *command], cwd=tmp_path, check=True, timeout=60)
    for name in ("resnet18.onnx", "tuning.db", "resnet18.tuned", "night.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "resnet18_c").mkdir()
    assert unexpected_top_level(tmp_path) == []
