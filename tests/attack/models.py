"""Models that are damaged, or made to do harm, on the way of a user's build.

An attempt makes a file from a seed: a small valid model with bytes or fields changed, or one of
`growing_models`. A fork with 4 GB and a minute imports it as the import process does, optimises,
compiles, loads and runs it. It has to be built, or refused with a sentence for the user; a
traceback, a crash, a hang and more memory than allowed are findings.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import ClassVar

import numpy as np
import onnx

import tunefarm.compiler.frontend.import_onnx  # noqa: F401 - here, so that no fork has to
from tests.attack.attack import Attack, Outcome
from tests.attack.forked import MEMORY_BYTES, SECONDS, End, Forked, run_forked
from tests.attack.growing_models import growing_model
from tests.attack.model_bases import DATA, DATA_BYTES, bases, own_bases
from tests.attack.model_mutations import mutate_bytes, mutate_field
from tunefarm.compiler.errors import TunefarmError, VerifyError
from tunefarm.compiler.limits import Limits
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.measure.sandbox.import_model import ImportRole, graph_of
from tunefarm.measure.sandbox.messages import Message
from tunefarm.measure.sandbox.worker_settings import WorkerSettings

LIMITS = Limits(bytes=1 << 30, nodes=10_000, seconds=25.0)
"""What a machine with the memory of an attempt would allow where import and build share it."""
_RETURNS = {End.RAISED: "traceback", End.CRASHED: "crash", End.HUNG: "hang"}
_COMMAND_SHARE = 0.004
_GROWING_SHARE = 0.2
_BYTES_SHARE = 0.25
_SMALLER_TRIES = 30


@dataclass(frozen=True, slots=True)
class Case:
    """A model under attack: `mutations` are seeds, each of one change."""

    base: str
    mutations: tuple[int, ...] = ()
    in_bytes: bool = False
    growing: int | None = None  # the seed of a growing model instead of a base

    @staticmethod
    def of(seed: int) -> Case:
        """The case of an attempt."""
        random = Random(seed)
        if random.random() < _GROWING_SHARE:
            return Case("", growing=seed)
        base = random.choice(sorted(bases()))
        if random.random() < 0.1:  # a model of ours is worth as much as hundreds of onnx's
            base = random.choice(sorted(own_bases()))
        count = random.choice((1, 1, 1, 2, 3, 5))
        mutations = tuple(random.randrange(1 << 30) for _ in range(count))
        return Case(base, mutations, in_bytes=random.random() < _BYTES_SHARE)

    def content(self) -> bytes:
        """The model's file."""
        if self.growing is not None:
            return bytes(growing_model(Random(self.growing))[1].SerializeToString())
        model = onnx.ModelProto()
        model.CopyFrom((own_bases() if self.base in own_bases() else bases())[self.base])
        if not self.in_bytes:
            for mutation in self.mutations:
                mutate_field(model, Random(mutation))
            return bytes(model.SerializeToString())
        content = bytes(model.SerializeToString())
        for mutation in self.mutations:
            content = mutate_bytes(content, Random(mutation))
        return content

    def __str__(self) -> str:
        if self.growing is not None:
            return f"growing model {growing_model(Random(self.growing))[0]}"
        where = "bytes" if self.in_bytes else "fields"
        return f"{self.base} with changed {where}: {list(self.mutations)}"


class Models(Attack):
    """Files that are no models, or models that no machine could build."""

    name: ClassVar[str] = "models"
    share: ClassVar[float] = 2.0

    def __init__(
        self,
        folder: Path,
        build: Callable[[Path], str] | None = None,
        *,
        seconds: float = SECONDS,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """`build` takes a file and says how it went; tests plant faults there."""
        super().__init__(folder)
        build_and_run(self._placed(Case("convolution").content()))  # what is imported late
        self._build = build_and_run if build is None else build
        self._seconds, self._memory_bytes = seconds, memory_bytes

    def attempt(self, seed: int) -> Outcome:
        content = Case.of(seed).content()
        if Random(~seed).random() < _COMMAND_SHARE:
            return self._by_command(content)
        return self.try_content(content)

    def try_content(self, content: bytes) -> Outcome:
        """Build and run a file in a fork."""
        path = self._placed(content)
        ended = run_forked(
            partial(self._build, path), seconds=self._seconds, memory_bytes=self._memory_bytes
        )
        return _outcome(ended)

    def minimise(self, seed: int, outcome: Outcome) -> str:
        """Fewer changes, then fewer nodes."""
        case = Case.of(seed)
        text, content = str(case), case.content()
        if outcome.label == _RETURNS[End.HUNG]:  # each try would take as long
            return text
        if not case.growing:
            for mutation in case.mutations:
                fewer = tuple(other for other in case.mutations if other != mutation)
                smaller = Case(case.base, fewer, case.in_bytes)
                if self.try_content(smaller.content()).label == outcome.label:
                    case = smaller
            text, content = str(case), case.content()
        return f"{text}\n{_listing(self._without_nodes(content, outcome))}"

    def _without_nodes(self, content: bytes, outcome: Outcome) -> bytes:
        try:
            model = onnx.ModelProto.FromString(content)
        except Exception:  # noqa: BLE001 - it is no model: there are no nodes to leave out
            return content
        for position in reversed(range(len(model.graph.node))[-_SMALLER_TRIES:]):
            smaller = onnx.ModelProto()
            smaller.CopyFrom(model)
            del smaller.graph.node[position]
            if self.try_content(smaller.SerializeToString()).label == outcome.label:
                model = smaller
        return bytes(model.SerializeToString())

    def _placed(self, content: bytes) -> Path:
        """The file, and beside it what external data may refer to."""
        path = self.folder / "model.onnx"
        path.write_bytes(content)
        (self.folder / DATA).write_bytes(DATA_BYTES)
        if not (self.folder / "pipe").exists():
            os.mkfifo(self.folder / "pipe")
            (self.folder / "link").symlink_to("/etc/passwd")
        return path

    def _by_command(self, content: bytes) -> Outcome:
        """The same by `tune build`, with the import in a process of its own."""
        path = self._placed(content)
        environment = {
            **os.environ,
            **{f"TUNEFARM_LIMITS__{k.upper()}": str(v) for k, v in asdict(LIMITS).items()},
        }
        program = "import tunefarm.tuner.commands.entry; tunefarm.tuner.commands.entry.main()"
        words = ["build", "--untuned", "--no-cache", "--model", str(path)]
        words += ["--output", str(self.folder / "built")]

        def limited() -> None:
            resource.setrlimit(resource.RLIMIT_DATA, (self._memory_bytes, self._memory_bytes))

        try:
            ended = subprocess.run(
                [sys.executable, "-c", program, *words],
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=2 * self._seconds,
                preexec_fn=limited,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(_RETURNS[End.HUNG], broke=True, detail="tune build")
        if ended.returncode == 0:
            return Outcome("built by command")
        lines = ended.stderr.strip().splitlines()
        problem = _problem(lines[-1] if lines else "")
        if ended.returncode < 0 or "Traceback" in ended.stderr or problem:
            return Outcome(
                "command failed", broke=True, detail=f"{problem}\n{ended.stderr[-3000:]}"
            )
        return Outcome("refused by command")


def build_and_run(path: Path) -> str:
    """What a build does with a file, in this process; how it went."""
    scratch = path.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    fields = {"path": str(path), "shapes": {}, "limits": asdict(LIMITS)}
    try:
        reply = ImportRole(WorkerSettings((0,), 1, {}, str(scratch))).answer(Message(fields))
        executable = Executable(
            compile_model(graph_of(reply.fields, path, scratch), limits=LIMITS).spec
        )
        executable.run(_inputs(executable))
    except VerifyError:
        raise  # a bug, by its own words
    except TunefarmError as error:
        problem = _problem(str(error))
        return f"!{problem}" if problem else f"refused: {type(error).__name__}"
    return "built"


def _inputs(executable: Executable) -> dict[str, Array]:
    random = np.random.default_rng(0)
    arrays = executable.empty_inputs()
    for array in arrays.values():
        array[...] = random.integers(0, 2, array.shape).astype(array.dtype)
    return arrays


def _problem(message: str) -> str:
    """What is wrong with an error's text; "" for one that a user can read."""
    if not message.strip():
        return "an error without a message"
    if "unexpected" in message:
        return f"an unexpected error: {message[:300]}"
    if len(message) > 4000:
        return f"an error of {len(message)} characters: {message[:300]}"
    return ""


def _outcome(ended: Forked) -> Outcome:
    if ended.end is End.RETURNED:
        broke = ended.text.startswith("!")
        return Outcome("bad message" if broke else ended.text, broke, ended.text if broke else "")
    if ended.end is End.RAISED:
        last = ended.text.strip().splitlines()[-1].split(":")[0]
        return Outcome(f"traceback {last}", broke=True, detail=ended.text)
    return Outcome(_RETURNS.get(ended.end, str(ended.end)), broke=True, detail=ended.text)


def _listing(content: bytes) -> str:
    """The model as text, or its bytes."""
    try:
        return str(onnx.printer.to_text(onnx.ModelProto.FromString(content)))[:2000]
    except Exception:  # noqa: BLE001 - then it is not in a form to be printed
        return content[:500].hex()
