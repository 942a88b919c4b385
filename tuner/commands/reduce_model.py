"""Reduce a model to the smallest part that still fails a check.

The model's values are recorded once. A part is some of its nodes; the values that it reads and
does not compute are given as recorded. Delta debugging (Zeller and Hildebrandt, "Simplifying and
isolating failure-inducing input", 2002) over the nodes in topological order finds a part from
which no node can be left out: it leaves out one half, then quarters, and so on, which bisects a
model that has one fault. Every check runs in a process that may crash, with a time limit.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.frontend.model_parts import ModelParts, whole_model, write_model
from tunefarm.compiler.runtime.artefact.array_files import write_outputs
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.compiler.with_count import with_count
from tunefarm.configs.temporary_folders import make_folder
from tunefarm.measure.machine import available_cores
from tunefarm.measure.measurement import Status
from tunefarm.measure.sandbox.messages import Message
from tunefarm.measure.sandbox.worker_process import Role, WorkerEndError, WorkerProcess
from tunefarm.measure.sandbox.worker_settings import WorkerSettings
from tunefarm.tuner.commands.reduce_check import (
    ENGINES,
    INPUTS,
    PREPARED,
    VALUES,
    Check,
    Outcome,
    read_values,
)

_ROLE = Role("reduce", "tunefarm.tuner.commands.reduce_check:ReduceRole", most_requests=50)
_FAULT_OF_THE_MODEL = (Status.CRASHED, Status.RUN_TIMEOUT, Status.OUT_OF_MEMORY)

Item = TypeVar("Item")
Notify: TypeAlias = Callable[[str], None]
Part: TypeAlias = tuple[tuple[int, ...], tuple[str, ...]]
"""The numbers of its nodes, and its outputs."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """What is left of a model: `text` says how it fails, `inputs` is the file of its inputs."""

    model: str
    inputs: str
    nodes: tuple[str, ...]
    nodes_before: int
    checks: int
    text: str

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            "model": self.model,
            "inputs": self.inputs,
            "nodes": list(self.nodes),
            "nodes_before": self.nodes_before,
            "checks": self.checks,
            "outcome": self.text,
        }


@dataclass(frozen=True, slots=True)
class ReduceRequest:
    """A model that fails `check`; the smallest part of it goes to `output` and `inputs_output`.

    `arrays` is an .npz file with inputs or "", `given` has inputs as `read_input` reads them;
    others are random. A check may take `seconds`.
    """

    model: str
    check: Check
    output: str
    inputs_output: str
    arrays: str = ""
    given: Mapping[str, str] | None = None
    seconds: float = 300.0


def reduce_model(request: ReduceRequest, notify: Notify) -> Reduced:
    """Reduce a model; each smaller part is written as soon as it is found to fail.

    Raises SettingsError for a model that does not fail, or that cannot be checked.
    """
    checker = _Checker(request)
    try:
        return _reduced(request, checker, notify)
    finally:
        checker.close()


def _reduced(request: ReduceRequest, checker: _Checker, notify: Notify) -> Reduced:
    inputs = str(checker.folder / INPUTS)
    drawn = checker.ask(request.model, request.arrays, "draw", given=dict(request.given or {}))
    if drawn.kind != "passes":
        raise SettingsError(f"{request.model}: {drawn.text}")
    whole = checker.ask(request.model, inputs)
    if not whole.fails:
        if whole.kind == "error":
            hint = "if it does not build, reduce it with --check build"
            raise SettingsError(f"{request.model} cannot be checked: {whole.text}", hint=hint)
        raise SettingsError(f"{request.model} does not fail: {whole.text}")
    parts = ModelParts(*checker.record(request.model, inputs))
    search = _Search(request, checker, parts, whole.kind, notify)
    nodes, _ = search.smallest()
    labels = [parts.nodes[number].name or parts.nodes[number].op_type for number in nodes]
    return Reduced(
        request.output,
        request.inputs_output,
        tuple(labels),
        len(parts.nodes),
        checker.checks,
        search.text,
    )


class _Checker:
    """Asks worker processes; one that crashes or is late is replaced."""

    def __init__(self, request: ReduceRequest) -> None:
        self._request = request
        self._worker: WorkerProcess | None = None
        self.folder = make_folder("reduce")
        self.checks = 0

    def close(self) -> None:
        """End the process, and remove the folder."""
        self._retire()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, model: str, inputs: str, action: str = "check", **more: object) -> Outcome:
        """The outcome of a check of a model with inputs, both files."""
        self.checks += action == "check"
        reply = self._reply(model, inputs, action, **more)
        if isinstance(reply, Outcome):
            return reply
        return Outcome(reply["kind"], reply["text"], reply["fails"])

    def record(self, model: str, inputs: str) -> tuple[Any, dict[str, Array]]:
        """The prepared model and its values, by the first engine that can run it."""
        for engine in (*ENGINES, ""):
            reply = self._reply(model, inputs, "record", engine=engine)
            if not isinstance(reply, Outcome) and reply["kind"] == "passes":
                values = read_values(self.folder / VALUES, reply["types"])
                return whole_model(self.folder / PREPARED), values
        raise SettingsError(f"{model} cannot be cut: {getattr(reply, 'text', '')}")

    def _reply(
        self, model: str, inputs: str, action: str, **more: object
    ) -> Mapping[str, Any] | Outcome:
        seconds = self._request.seconds
        fields = {
            "action": action,
            "check": asdict(self._request.check),
            "model": model,
            "inputs": inputs,
            "cpu_seconds": seconds * len(available_cores()) + 1,
            **more,
        }
        if self._worker is not None and self._worker.served >= _ROLE.most_requests:
            self._retire()
        if self._worker is None:
            threads = self._request.check.threads
            settings = WorkerSettings(available_cores(), threads, {}, scratch=str(self.folder))
            self._worker = WorkerProcess(settings, _ROLE)
        try:
            reply = self._worker.request(Message(fields), seconds).fields
        except WorkerEndError as end:
            self._retire()
            text = end.text.splitlines()[0]
            if end.status not in _FAULT_OF_THE_MODEL:
                raise SettingsError(f"the check was interrupted: {text}") from None
            return Outcome(f"{end.status}: {text}", text, fails=True)
        if reply.get("retire"):  # it has used up its CPU time
            self._retire()
        return reply

    def _retire(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


class _Search:
    """The search for the smallest part whose outcome is of this kind."""

    def __init__(
        self,
        request: ReduceRequest,
        checker: _Checker,
        parts: ModelParts,
        kind: str,
        notify: Notify,
    ) -> None:
        self._request, self._checker, self._parts = request, checker, parts
        self._kind, self._notify = kind, notify
        self._known: dict[Part, bool] = {}
        self._dropped = set[str]()
        self._best = len(parts.nodes) + 1
        self.text = ""

    def smallest(self) -> Part:
        """A part that fails, and does not without any one of its nodes or outputs.

        It is in the output files then. Raises SettingsError where the whole model does not fail
        once it is written again.
        """
        everything = range(len(self._parts.nodes))
        without = [number for number in everything if number not in self._parts.constants]
        part = self._failing(without) or self._failing(everything)
        if part is None:
            raise SettingsError(
                f"{self._request.model} does not fail any more as a copy of its graph",
                hint="the fault may be in how the file is read: try tune inspect --stage graph",
            )
        while True:
            kept = minimise(part[0], lambda nodes: self._failing(nodes) is not None)
            smaller = self._without_outputs(self._failing(kept) or part)
            if smaller == part:
                return part
            part = smaller

    def _without_outputs(self, part: Part) -> Part:
        """The part with the fewest outputs, and with the nodes that they need."""
        for name in part[1]:
            self._dropped.add(name)
            smaller = self._failing(part[0])
            if smaller is None:
                self._dropped.remove(name)
            else:
                part = smaller
        return part

    def _failing(self, nodes: Sequence[int]) -> Part | None:
        """The part of these nodes, if it fails; it is written then if none was smaller."""
        outputs = [name for name in self._parts.outputs(nodes) if name not in self._dropped]
        kept = self._parts.needed(set(nodes), outputs)
        part = (kept, tuple(outputs))
        if part not in self._known:
            self._known[part] = self._check(part)
        return part if self._known[part] else None

    def _check(self, part: Part) -> bool:
        if not part[1] or (made := self._parts.part(*part)) is None:
            return False
        model, inputs = made
        files = [str(self._checker.folder / name) for name in ("part.onnx", "part.npz")]
        write_model(model, files[0])
        write_outputs(inputs, files[1])
        outcome = self._checker.ask(files[0], files[1])
        if outcome.kind != self._kind:
            return False
        if len(part[0]) <= self._best:
            write_model(model, self._request.output)
            write_outputs(inputs, self._request.inputs_output)
            if len(part[0]) < self._best:
                self._notify(f"{with_count(len(part[0]), 'node')}: {outcome.text}")
            self._best, self.text = len(part[0]), outcome.text
        return True


def minimise(items: Sequence[Item], fails: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """Some of the items, in order, that fail, and do not without any one of them.

    `fails` holds for all items. Runs of neighbours are left out: halves first, at last single ones.
    """
    left, size = list(items), max(1, len(items) // 2)
    while True:
        before, start = len(left), 0
        while start < len(left):
            rest = left[:start] + left[start + size :]
            if rest and fails(rest):
                left = rest
            else:
                start += size
        if size == 1 and len(left) == before:
            return left
        size = max(1, size // 2)


def default_outputs(model: str, output: str | None) -> tuple[str, str]:
    """The files of the reduced model and of its inputs."""
    path = Path(output) if output else Path(f"{Path(model).stem}_reduced.onnx")
    return str(path), str(path.with_suffix(".npz"))
