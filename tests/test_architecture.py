"""The boundaries of the design: who may import whom, and the one home of each library.

The rules are functions of a folder, so that they are tested on folders that break them.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

INSTALLED = "tunefarm"
"""The package that all others are in where they are installed, and so in every import."""

# A package may import itself and these.
MAY_IMPORT = {
    "configs": set[str](),
    "compiler": {"configs"},
    "measure": {"configs", "compiler"},
    "db": {"configs"},
    "tuner": {"configs", "compiler", "measure", "db"},
}

# The files and rooms of the compiler, the lowest first: each may import itself and those before it.
COMPILER_ORDER = (
    "version",
    "errors",
    "with_count",
    "types",
    "strings",
    "machine",
    "limits",
    "foreign_functions",
    "function_modules",
    "target",
    "content_cache",
    "expr",
    "kernels",
    "loops",
    "schedule",
    "operators",
    "graph",
    "plan",
    "frontend",
    "llvm",
    "runtime",
    "stages",
    "kernel_stages",
    "assemble_spec",
    "pipeline",
    "emit",
    "session",
    "generation",
    "run_artefact",
    "__init__",
)

ORDERS = {
    "compiler": COMPILER_ORDER,
    "compiler/plan": (
        "__init__",
        "decisions",
        "sizes",
        "layouts",
        "fusion",
        "precision",
        "share_memory",
        "transposed_convolutions",
        "dilated_convolutions",
        "optimise",
        "choices",
        "apply_precisions",
    ),
    "compiler/runtime": (
        "__init__",
        "machine",
        "spec",
        "planning",
        "entry",
        "artefact",
        "sizes",
        "execution",
        "c_library",
    ),
    "measure": (
        "__init__",
        "unchanged",
        "measurement",
        "placement",
        "machine",
        "cpu_quota",
        "cpus",
        "core_locks",
        "compare",
        "sandbox",
        "worker",
        "farm",
    ),
    "tuner": (
        "packaging",
        "from_settings",
        "interrupt",
        "records",
        "model",
        "reports",
        "search",
        "calibration",
        "building",
        "confirm",
        "pages",
        "precision",
        "result",
        "job_request",
        "plans",
        "job_models",
        "job",
        "tune_model",
        "tune_precisions",
        "tune_sizes",
        "queues",
        "inference_session",
        "doctor",
        "verify",
        "__init__",
        "docs",
        "commands",
        "facade",
    ),
}
"""The same of every package and room that has an order, by folder."""

# A library may be imported by these files, or below these folders, and nowhere else.
HOMES = {
    "onnx": ("compiler/frontend/",),
    "llvmlite": (
        "compiler/llvm/",
        "compiler/runtime/",
        "compiler/target.py",
        "compiler/machine/amx_state.py",
    ),
    "ml_dtypes": ("compiler/types/dtypes.py",),
    "packaging": ("tuner/doctor/program.py",),
    "ray": (
        "measure/farm/ray_child.py",
        "measure/farm/farm_status.py",
        "measure/farm/ray_calls.py",
        "measure/farm/ray_cluster.py",
        "measure/farm/ray_nodes.py",
        "measure/farm/ray_runner.py",
        "measure/farm/ray_start.py",
        "measure/farm/ray_workers.py",
    ),
    "sqlalchemy": ("db/",),
    "alembic": ("db/",),
    "psycopg": ("db/",),
    "sqlite3": ("db/",),
    "xgboost": ("tuner/model/cost_model.py", "tuner/model/pretrained.py"),
    "optuna": (
        "tuner/search/study_strategy.py",
        "tuner/search/strategies/",
        "tuner/records/optuna_study.py",
    ),
    "pydantic": ("configs/",),
    "tomllib": ("configs/", "tuner/packaging/"),
    "typer": ("tuner/",),
    "click": ("tuner/",),
    "rich": ("tuner/",),
    "http": ("tuner/commands/live_server.py", "tuner/docs/site.py"),
    "jinja2": ("tuner/pages/page.py", "tuner/queues/summary.py"),
    "markupsafe": ("tuner/pages/page.py",),
    "bokeh": ("tuner/pages/plots.py",),
    "mkdocs": ("tuner/docs/", "tuner/commands/docs_hooks.py"),
    "onnxruntime": ("tuner/",),
    "onnxruntime_genai": ("tuner/commands/bench_generate.py",),
    "tokenizers": ("tuner/commands/generate_cli.py",),
    "openvino": ("tuner/",),
    "IPython": ("tuner/reports/notebook.py",),
    "setuptools": ("tuner/packaging/",),
    "pytest": (),
    "hypothesis": (),
    "pickle": (),  # it runs code
    "cloudpickle": (),
    "marshal": (),
    "shelve": (),
}

SETTINGS = "configs/settings.py"
"""The only reader of the environment."""

HANDS_ON_ENVIRONMENT = "measure/"
"""May hand the environment on to a child process, whole or changed, without looking into it."""

HANDING_ON = {"clear", "copy", "update", "setdefault", "pop"}

PUBLIC_UNDERSCORES = {"_exit"}
"""Of `os`: it has an underscore and is documented."""

ENVIRONMENT = {"environ", "environb", "getenv", "getenvb"}
DYNAMIC_IMPORTS = {"__import__", "import_module", "exec", "eval"}
LOOKS_UP_BY_NAME = {
    # A process is told by name what it is to do: no room imports those that build upon it.
    "measure/sandbox/by_name.py",
    # Users name the modules in which they register functions.
    "compiler/function_modules.py",
    # A strategy is found by the name of its file, so that a new one is that file alone.
    "tuner/search/strategy.py",
    # Steps know their own names, and a new one is a file beside this alone.
    "compiler/schedule/steps/__init__.py",
    # Whether a library can be imported is found out by importing it, in a process of its own.
    "tuner/doctor/can_import.py",
    # So are operators and their converters.
    "compiler/operators/__init__.py",
    "compiler/frontend/operators/__init__.py",
    # What a user asks of the package is imported when it is asked for.
    "tuner/facade.py",
}

TOP_LEVEL = {
    *MAY_IMPORT,
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
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
    ".venv",
    ".venv-test",
}


def violations(root: Path) -> list[str]:
    """Every breach of the rules in the packages below `root`, as "file:line: what"."""
    found = []
    for package in MAY_IMPORT:
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            tree = ast.parse(path.read_text(encoding="utf-8"), filename=name)
            breaches = [
                *_import_breaches(name, tree),
                *_order_breaches(name, tree),
                *_privacy_breaches(name, tree),
                *_environment_breaches(name, tree),
            ]
            found += [f"{name}:{line}: {what}" for line, what in sorted(breaches)]
    return found


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


def _import_breaches(name: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    package = name.split("/")[0]
    for line, module in _imports(tree):
        own = _own(module)
        top = (own or module).split(".")[0]
        if module == INSTALLED:
            yield line, f"{INSTALLED} is for users: import from the package that has the name"
        elif own is None and top in MAY_IMPORT:
            yield line, f"{top} is imported as {INSTALLED}.{top}"
        elif own is not None and top not in MAY_IMPORT:
            yield line, f"{top} is no package of {INSTALLED}: import it from the file that has it"
        elif own is not None and top != package and top not in MAY_IMPORT[package]:
            yield line, f"{package} must not import {top}"
        elif top == "tests":
            yield line, f"{package} must not import tests"
        elif top in HOMES and not _is_at_home(name, HOMES[top]):
            yield line, f"{top} has another home: {', '.join(HOMES[top]) or 'tests'}"
    for node in _nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, "a relative import hides what is imported"
        if name in LOOKS_UP_BY_NAME or not isinstance(node, ast.Call):
            continue
        if _last_name(node.func) in DYNAMIC_IMPORTS:
            yield node.lineno, f"{_last_name(node.func)} hides what is imported"


def _order_breaches(name: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Imports of a folder's rooms that go upwards."""
    for folder, order in ORDERS.items():
        if not name.startswith(f"{folder}/"):
            continue
        room = name.removeprefix(f"{folder}/").split("/")[0].removesuffix(".py")
        if room not in order:
            yield 1, f"{folder}/{room} has no place in the order of {folder}"
            continue
        inside = folder.replace("/", ".") + "."
        for line, imported_module in _imports(tree):
            module = _own(imported_module) or ""
            imported = module.removeprefix(inside).split(".")[0]
            if not module.startswith(inside) or imported not in order or imported == room:
                continue
            if order.index(imported) > order.index(room):
                yield (
                    line,
                    f"{folder}/{room} must not import {folder}/{imported}, which is above it",
                )


def _privacy_breaches(name: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Reads of a private attribute of something that is not from this file."""
    own = _defined_names(tree)
    for node in _nodes(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
            continue
        if node.attr.startswith("__") or node.attr in own or node.attr in PUBLIC_UNDERSCORES:
            continue
        yield node.lineno, f"{node.attr} is private to another file"


def _defined_names(tree: ast.Module) -> set[str]:
    """Names that the file's own classes have: methods, fields, what `self` is given."""
    names = set()
    for node in _nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and (
            isinstance(node.ctx, ast.Store)
            or (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        ):
            names.add(node.attr)
    return names


@lru_cache(maxsize=2)
def _nodes(tree: ast.AST) -> list[ast.AST]:
    """All nodes of a file, which several rules go through."""
    return list(ast.walk(tree))


@lru_cache(maxsize=2)
def _parents(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    return {child: node for node in _nodes(tree) for child in ast.iter_child_nodes(node)}


@lru_cache(maxsize=2)
def _imports(tree: ast.Module) -> list[tuple[int, str]]:
    """Modules imported anywhere in the file, inside functions and type-checking blocks too.

    Of `from tunefarm import a` and `from tunefarm.compiler import a` that is `a` as well.
    """
    return list(_each_import(tree))


def _each_import(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            module = node.module or ""
            if module != INSTALLED:
                yield node.lineno, module
            if module in (INSTALLED, f"{INSTALLED}.compiler"):
                for alias in node.names:
                    yield node.lineno, f"{module}.{alias.name}"


def _own(module: str) -> str | None:
    """The name in the repository of a module of ours; None for another's."""
    head, _, rest = module.partition(".")
    return rest if head == INSTALLED and rest else None


def _environment_breaches(name: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    if name == SETTINGS:
        return
    for node in _nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            for alias in node.names:
                if alias.name in ENVIRONMENT:
                    yield node.lineno, f"import os, not {alias.name} from it"
        if not (isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT):
            continue
        if name.startswith(HANDS_ON_ENVIRONMENT) and _is_handed_on(node, _parents(tree)):
            continue
        yield node.lineno, f"os.{node.attr} is read in {SETTINGS} alone"


def _is_handed_on(node: ast.Attribute, parents: dict[ast.AST, ast.AST]) -> bool:
    """`{**os.environ}`, `dict(os.environ)`, `os.environ.update(…)` …, `os.environ[k] = v`."""
    if node.attr != "environ":
        return False
    parent = parents[node]
    match parent:
        case ast.Dict(keys=keys, values=values):
            return any(
                key is None and value is node for key, value in zip(keys, values, strict=True)
            )
        case ast.Call(func=ast.Name(id="dict")):
            return node in parent.args
        case ast.Attribute(attr=method):
            call = parents[parent]
            if not isinstance(call, ast.Call):
                return False
            return method == "copy" or (
                method in HANDING_ON and isinstance(parents[call], ast.Expr)
            )
        case ast.Subscript(ctx=ast.Store() | ast.Del()):
            return True
        case _:
            return False


def _is_at_home(name: str, homes: tuple[str, ...]) -> bool:
    return any(name == home or (home.endswith("/") and name.startswith(home)) for home in homes)


def _last_name(function: ast.expr) -> str:
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.attr if function.value.id in ("importlib", "builtins") else ""
    return ""


def test_sources_keep_the_boundaries(repository: Path) -> None:
    assert violations(repository) == []


def test_top_level_is_fixed(repository: Path) -> None:
    assert unexpected_top_level(repository) == []


@pytest.fixture(scope="module")
def imported_by_tests(repository: Path) -> dict[str, list[str]]:
    """The modules that each file below tests/ imports, by its name."""
    return {
        path.relative_to(repository).as_posix(): [
            module for _, module in _imports(ast.parse(path.read_text()))
        ]
        for path in sorted((repository / "tests").rglob("*.py"))
    }


def test_tests_of_the_compiler_import_no_tuner(imported_by_tests: dict[str, list[str]]) -> None:
    of_compiler = [name for name in imported_by_tests if name.startswith("tests/compiler/")]
    assert of_compiler
    for name in of_compiler:
        above = [
            module
            for module in imported_by_tests[name]
            if module.startswith(("tunefarm.tuner", "tests.tuner"))
            and not module.startswith("tunefarm.tuner.packaging")
        ]
        assert above == [], name


def test_tests_import_what_is_installed(imported_by_tests: dict[str, list[str]]) -> None:
    """The repository is on the import path of tests: a bare `compiler` would be a second one."""
    for name, modules in imported_by_tests.items():
        bare = [module for module in modules if module.split(".")[0] in MAY_IMPORT]
        assert bare == [], name


def test_every_package_is_looked_at(repository: Path) -> None:
    for package in MAY_IMPORT:
        assert list((repository / package).rglob("*.py")), package


def test_no_stray_package_markers_are_missing(repository: Path) -> None:
    """A folder of sources without __init__.py would not be installed."""
    for package in MAY_IMPORT:
        for path in (repository / package).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), path


@pytest.mark.parametrize(
    ("name", "source", "breach"),
    [
        ("compiler/expr/a.py", "import tunefarm.db.store", "1: compiler must not import db"),
        ("compiler/expr/a.py", "import os, tunefarm.tuner", "1: compiler must not import tuner"),
        (
            "compiler/expr/a.py",
            "from tunefarm.measure import job",
            "1: compiler must not import measure",
        ),
        (
            "measure/farm/a.py",
            "from tunefarm.db.store import Store",
            "1: measure must not import db",
        ),
        ("db/a.py", "from tunefarm.compiler.errors import X", "1: db must not import compiler"),
        ("configs/a.py", "from tunefarm import compiler", "1: configs must not import compiler"),
        ("tuner/job.py", "import compiler", "1: compiler is imported as tunefarm.compiler"),
        ("tuner/job.py", "from db.store import Store", "1: db is imported as tunefarm.db"),
        ("tuner/job.py", "import tunefarm", "1: tunefarm is for users"),
        ("tuner/job.py", "from tunefarm import load", "1: load is no package of tunefarm"),
        ("db/a.py", "from .. import compiler", "1: a relative import hides"),
        ("tuner/job.py", "import tests.examples", "1: tuner must not import tests"),
        (
            "compiler/expr/a.py",
            "def f():\n    if True:\n        import onnx.helper",
            "3: onnx has another home: compiler/frontend/",
        ),
        (
            "compiler/expr/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tunefarm.tuner.job",
            "3: compiler must not import tuner",
        ),
        (
            "compiler/expr/a.py",
            "try:\n    import llvmlite\nexcept ImportError:\n    pass",
            "2: llvmlite has another home: compiler/llvm/, compiler/runtime/, compiler/target.py",
        ),
        ("compiler/expr/target.py", "import llvmlite", "1: llvmlite has another home: "),
        ("measure/farm/a.py", "from ray import remote", "1: ray has another home: "),
        ("tuner/job.py", "import xgboost as xgb", "1: xgboost has another home: "),
        ("tuner/search/session.py", "import sqlalchemy", "1: sqlalchemy has another home: db/"),
        ("tuner/commands/cli.py", "import tomllib", "1: tomllib has another home: configs/"),
        ("db/a.py", "import rich", "1: rich has another home: tuner/"),
        ("measure/farm/a.py", "import pickle", "1: pickle has another home: tests"),
        ("db/a.py", "import pytest", "1: pytest has another home: tests"),
        (
            "compiler/expr/a.py",
            "import tunefarm.compiler.kernels.kernel",
            "1: compiler/expr must not",
        ),
        (
            "compiler/graph/a.py",
            "from tunefarm.compiler.plan import fuse",
            "1: compiler/graph must not",
        ),
        (
            "compiler/plan/fusion/a.py",
            "from tunefarm.compiler import frontend",
            "1: compiler/plan must not",
        ),
        (
            "compiler/plan/sizes/a.py",
            "from tunefarm.compiler.plan.fusion import fuse",
            "1: compiler/plan/sizes must not import compiler/plan/fusion",
        ),
        (
            "compiler/operators/a.py",
            "def f():\n    import tunefarm.compiler.graph",
            "2: compiler/operators",
        ),
        (
            "compiler/errors.py",
            "from tunefarm.compiler.types import dtypes",
            "1: compiler/errors must not",
        ),
        (
            "compiler/runtime/spec/a.py",
            "import tunefarm.compiler.stages",
            "1: compiler/runtime must not import",
        ),
        (
            "compiler/runtime/spec/a.py",
            "from tunefarm.compiler.runtime.entry.entry import entry_of",
            "1: compiler/runtime/spec must not import compiler/runtime/entry",
        ),
        ("compiler/runtime/a.py", "", "1: compiler/runtime/a has no place in the order"),
        ("compiler/helpers/a.py", "import json", "1: compiler/helpers has no place in the"),
        ("db/a.py", "def f(store):\n    return store._engine", "2: _engine is private to another"),
        (
            "tuner/job.py",
            "import tunefarm.db.store as s\ns._open()",
            "2: _open is private to another file",
        ),
        (
            "tuner/job.py",
            "import importlib\nimportlib.import_module('ray')",
            "2: import_module",
        ),
        ("tuner/job.py", "__import__('ray')", "1: __import__ hides what is imported"),
        ("tuner/job.py", "import os\nos.environ['A']", "2: os.environ is read in configs/"),
        ("tuner/job.py", "import os\nos.getenv('A')", "2: os.getenv is read in configs/"),
        ("tuner/job.py", "import os as o\no.environ", "2: os.environ is read in configs/"),
        ("tuner/job.py", "from os import environ", "1: import os, not environ from it"),
        ("measure/farm/a.py", "import os\nos.environ['A']", "2: os.environ is read in configs/"),
        ("measure/farm/a.py", "import os\nos.environ.get('A')", "2: os.environ is read in"),
        ("measure/farm/a.py", "import os\n'A' in os.environ", "2: os.environ is read in configs/"),
        ("measure/farm/a.py", "import os\nx = os.environ.pop('A')", "2: os.environ is read in"),
        ("measure/farm/a.py", "import os\nos.getenv('A')", "2: os.getenv is read in configs/"),
    ],
)
def test_breach_is_found(tmp_path: Path, name: str, source: str, breach: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(source)
    (found,) = violations(tmp_path)
    assert found.startswith(f"{name}:{breach}")


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("compiler/frontend/zoo/a.py", "import onnx.helper"),
        (
            "compiler/plan/optimise.py",
            "import tunefarm.compiler.plan.fusion.fuse\nfrom tunefarm.compiler import graph",
        ),
        ("compiler/__init__.py", "from tunefarm.compiler.pipeline import build"),
        ("compiler/runtime/entry/a.py", "from tunefarm.compiler.runtime.spec.ports import Port"),
        ("db/a.py", "class A:\n    def f(self, other):\n        return self._x == other._x"),
        ("db/a.py", "import os\nos._exit(1)\nprint(__name__.__class__)"),
        ("compiler/target.py", "from llvmlite import binding"),
        ("tuner/job.py", "from tunefarm import compiler, measure, db, configs\nimport numpy"),
        ("tuner/search/strategies/a.py", "import optuna"),
        ("db/a/b.py", "from tunefarm.db.schema import Base\nimport sqlalchemy"),
        ("configs/settings.py", "import os\nos.environ['A']"),
        ("measure/farm/a.py", "import os\nenvironment = {**os.environ, 'A': '1'}"),
        ("measure/farm/a.py", "import os\nenvironment = dict(os.environ, A='1')"),
        ("measure/farm/a.py", "import os\nenvironment = os.environ.copy()"),
        ("measure/farm/a.py", "import os\nos.environ['A'] = '1'\nos.environ.setdefault('A', '1')"),
    ],
)
def test_what_is_allowed_passes(tmp_path: Path, name: str, source: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert violations(tmp_path) == []


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
