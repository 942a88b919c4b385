"""Mutation testing: which planted faults of the compiler its tests find.

    python -m tests.mutation --mutants 40 --seed 1
    python -m tests.mutation --only compiler/loops/region.py:41:4

Each mutant changes one expression or leaves out one statement, in a copy of the sources. The tests
of that file run first, then those of its folder and those that import it, then all of the
compiler; the first one that fails, or takes too long, kills the mutant. A survivor is a missing
test, or changes nothing that a user could see: `EQUIVALENT` says why, for each of those.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tunefarm.tuner.packaging.build_backend import PARTS, link_sources

ROOT = Path(__file__).resolve().parents[1]
AREAS = {
    "lowering": ("compiler/loops/", "compiler/llvm/"),
    "limits": ("compiler/plan/sizes/", "compiler/limits.py", "compiler/types/sizes.py"),
    "layouts": ("compiler/plan/layouts/", "compiler/plan/fusion/", "compiler/kernels/"),
    "numerics": ("compiler/types/", "compiler/expr/", "compiler/plan/precision/"),
}
"""The sources that faults are planted in, by what goes wrong there; each has as many mutants."""
GOLDEN_CODE = Path("tests/compiler/test_emitted_code.py")
WHOLE_COMPILER = Path("tests/compiler")
_NOTHING_ADDED = "of equal operands the difference is 0 in either case"
EQUIVALENT = {
    "compiler/expr/arithmetic.py:float_remainder: 22 -> 23": (
        "a quotient below 2**23 is off by a quarter at most, which is corrected"
    ),
    "compiler/kernels/evaluate.py:_chunks: size <= maximum -> (size < maximum)": (
        "a grid of just that size is computed in two halves, with the same results"
    ),
    "compiler/llvm/scalar_work.py:_has_pattern: 0 -> 1": (
        "all are compared with one of them, whichever it is"
    ),
    "compiler/types/sizes.py:: right < left -> (right <= left)": _NOTHING_ADDED,
    "compiler/types/sizes.py:: right > left -> (right >= left)": _NOTHING_ADDED,
}
"""Mutants that change no behaviour, as "file:function: before -> after", and the reason."""

_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_SWAPPED_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_NO_TESTS = 5  # pytest's exit status: none of the tests is marked so
_NO_CODE = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted fault: the text of a node, from `start` to `end` of its file, and another."""

    area: str
    file: str
    function: str
    line: int
    column: int
    start: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        shown = f"{' '.join(self.before.split())} -> {self.after}"
        return f"{self.file}:{self.function}: {shown}"

    @property
    def place(self) -> str:
        """What `--only` takes."""
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant: the tests that killed it, None of a survivor."""

    mutant: Mutant
    killed_by: str | None
    seconds: float


def mutants_of(area: str, file: str, source: str) -> list[Mutant]:
    """Every fault that can be planted in a file, in the order of its text."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for function, node, after in _changes(ast.parse(source), ""):
        end_line, end_column = node.end_lineno or 0, node.end_col_offset or 0
        start, end = starts[node.lineno - 1] + node.col_offset, starts[end_line - 1] + end_column
        before = source.encode()[start:end].decode()
        place = (function, node.lineno, node.col_offset, start, end)
        found.append(Mutant(area, file, *place, before, after))
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.after))


def planted(source: str, mutant: Mutant) -> str:
    """The text of the file with the fault in it."""
    text = source.encode()
    return (text[: mutant.start] + mutant.after.encode() + text[mutant.end :]).decode()


def _changes(node: ast.AST, function: str) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """The nodes below one that can be changed: where they are, and their new text."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, _NO_CODE):
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":  # of a zip: an assertion
                continue
            inside = function
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inside = f"{function}.{child.name}".strip(".")
            if isinstance(child, ast.expr | ast.stmt):
                yield from ((inside, child, after) for after in _changed(child))
            yield from _changes(child, inside)
        if name == "test" and isinstance(value, ast.expr) and not isinstance(value, ast.Compare):
            yield function, value, f"(not ({ast.unparse(value)}))"


def _changed(node: ast.expr | ast.stmt) -> Iterator[str]:
    """The texts of what a node may become; none of what is left as it is."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            if type(operator) in _SWAPPED:
                swapped = _SWAPPED[type(operator)]()
                yield f"({ast.unparse(ast.Compare(left, [swapped], [right]))})"  # type: ignore[list-item]
        case ast.BinOp(op=operator) if type(operator) in _SWAPPED:
            changed = ast.BinOp(node.left, _SWAPPED[type(operator)](), node.right)  # type: ignore[arg-type]
            yield f"({ast.unparse(changed)})"
        case ast.BoolOp(op=operator, values=values):
            changed_op = _SWAPPED[type(operator)]()
            yield f"({ast.unparse(ast.BoolOp(changed_op, values))})"  # type: ignore[arg-type]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value)):
            yield str(value + 1)
        case ast.Name(id=name, ctx=ast.Load()) if name in _SWAPPED_CALLS:
            yield _SWAPPED_CALLS[name]
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break():
            yield "pass"
        case _:
            return


def draw(count: int, seed: int, root: Path = ROOT) -> list[Mutant]:
    """`count` mutants of the sources below `root`, as many of each area, none on one line twice.

    A draw of more begins with the same mutants.
    """
    rng = random.Random(seed)
    waiting = []
    for area, places in AREAS.items():
        paths = [path for place in places for path in sorted((root / place).rglob("*.py"))]
        paths += [root / place for place in places if place.endswith(".py")]
        found = []
        for path in paths:
            name = path.relative_to(root).as_posix()
            found += mutants_of(area, name, path.read_text(encoding="utf-8"))
        rng.shuffle(found)
        waiting.append(found)
    drawn: dict[tuple[str, int], Mutant] = {}
    while len(drawn) < count and any(waiting):
        for found in waiting:
            while found and len(drawn) < count:
                mutant = found.pop()
                if (mutant.file, mutant.line) not in drawn and str(mutant) not in EQUIVALENT:
                    drawn[mutant.file, mutant.line] = mutant
                    break
    return list(drawn.values())


def stages_of(file: str, root: Path = ROOT, *, near: bool = False) -> list[tuple[str, ...]]:
    """The tests that may find a fault of a file, the nearest first: its own, those of its folder,
    those that import it, the golden code, and unless only `near` ones are asked for all others.
    """
    mirrored = Path("tests") / file
    own = mirrored.with_name(f"test_{mirrored.name}")
    module = f"tunefarm.{file.removesuffix('.py').replace('/', '.')}"
    importing = [
        path.relative_to(root).as_posix()
        for path in sorted((root / WHOLE_COMPILER).rglob("test_*.py"))
        if f"{module} import" in path.read_text(encoding="utf-8")
    ]
    stages = [(own.as_posix(),), tuple(importing), (GOLDEN_CODE.as_posix(),)]
    if mirrored.parent != WHOLE_COMPILER:
        stages.insert(1, (mirrored.parent.as_posix(),))
    if not near:
        stages.append((WHOLE_COMPILER.as_posix(),))
    there = [tuple(path for path in stage if (root / path).exists()) for stage in stages]
    return list(dict.fromkeys(filter(None, there)))


def copy_sources(folder: Path) -> dict[str, str]:
    """Copy the project into a folder; the environment in which its tests import that copy."""
    for name in (*PARTS, "tests", "README.md", "LICENSE", "pyproject.toml", ".ci", ".github"):
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)
    environment = {**os.environ, "PYTHONPATH": str(link_sources(folder)), "CI": "true"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


@dataclass(frozen=True, slots=True)
class Trials:
    """How mutants are tried: in which copy, by which tests, and how long each stage may take."""

    folder: Path
    environment: dict[str, str]
    marked: str
    near: bool
    seconds: float

    def outcome(self, mutant: Mutant) -> Outcome:
        """Plant a fault in the copy, run the tests stage by stage, and take it out again."""
        began = time.monotonic()
        path = self.folder / mutant.file
        source = path.read_text(encoding="utf-8")
        self._write(path, planted(source, mutant))
        killed_by = None
        try:
            for stage in stages_of(mutant.file, self.folder, near=self.near):
                if (killed_by := self._failing(stage)) is not None:
                    break
        finally:
            self._write(path, source)
        return Outcome(mutant, killed_by, round(time.monotonic() - began, 1))

    def _write(self, path: Path, source: str) -> None:
        """Write a source without the bytecode of one of the same second and length."""
        path.write_text(source, encoding="utf-8")
        shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)

    def _failing(self, stage: Sequence[str]) -> str | None:
        """The first test of a stage that fails, or the stage that takes too long; else None."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no"]
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                [*command, "-m", self.marked, *stage],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(self.seconds)
            except subprocess.TimeoutExpired:
                return f"{stage[0]} (more than {self.seconds:g} s)"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            output.seek(0)
            text = output.read()
        if status in (0, _NO_TESTS):
            return None
        failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return failed[0].split(" ")[1] if failed else f"{stage[0]} (ended with {status})"


def summary(outcomes: Sequence[Outcome]) -> str:
    """The share that was killed, by area, and the survivors."""
    of_area = Counter(each.mutant.area for each in outcomes)
    killed = Counter(each.mutant.area for each in outcomes if each.killed_by is not None)
    lines = [f"{area}: {killed[area]} of {count} killed" for area, count in of_area.items()]
    lines.append(f"all: {killed.total()} of {len(outcomes)} killed")
    for each in outcomes:
        if each.killed_by is None:
            lines.append(f"survived: {each.mutant.place}: {each.mutant}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw mutants, run them, print what survived; the exit status is 1 if too many did."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--mutants", type=int, default=40, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, help="leave out the first of the draw")
    parser.add_argument("--only", action="append", help="FILE:LINE:COLUMN, instead of a draw")
    parser.add_argument("--nightly", action="store_true", help="run the nightly tests too")
    parser.add_argument(
        "--near", action="store_true", help="only a file's nearest tests, and the golden code"
    )
    parser.add_argument("--stage-seconds", type=float, default=900.0)
    parser.add_argument("--at-least", type=float, default=0.9, help="share that is to be killed")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file")
    options = parser.parse_args(arguments)
    if options.only:
        sources = {place.split(":")[0] for place in options.only}
        every = [m for file in sources for m in mutants_of("", file, (ROOT / file).read_text())]
        mutants = [mutant for mutant in every if mutant.place in options.only]
    else:
        mutants = draw(options.mutants, options.seed)[options.skip :]
    marked = "not alone" if options.nightly else "not alone and not nightly"
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="tunefarm-mutants-") as name:
        environment = copy_sources(Path(name))
        trials = Trials(Path(name), environment, marked, options.near, options.stage_seconds)
        for mutant in mutants:
            each = trials.outcome(mutant)
            outcomes.append(each)
            said = f"killed by {each.killed_by}" if each.killed_by else "SURVIVED"
            print(f"{each.seconds:6.0f} s  {mutant.place}: {mutant}\n          {said}", flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps([asdict(each) for each in outcomes], indent=1))
    print(summary(outcomes))
    killed = sum(each.killed_by is not None for each in outcomes)
    return int(killed < options.at_least * len(outcomes))


if __name__ == "__main__":
    sys.exit(main())
