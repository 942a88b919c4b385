"""Whether a model fails: what a worker process answers to `reduce_model`.

A check gives a kind of outcome. A part of a model still fails if its outcome is of the kind that
the whole model's is; what ends the worker process is a kind of its own.
"""

from __future__ import annotations

import re
import runpy
import shlex
import signal
import subprocess
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tunefarm import compiler
from tunefarm.compiler.errors import InputError, SettingsError, TunefarmError
from tunefarm.compiler.frontend.declared_ports import DeclaredPort, declared_model
from tunefarm.compiler.frontend.import_onnx import import_onnx
from tunefarm.compiler.frontend.model_parts import (
    declared_values,
    reference_outputs,
    whole_model,
    with_all_values,
    with_types,
    write_model,
)
from tunefarm.compiler.frontend.symbol_names import expression_size
from tunefarm.compiler.graph.evaluate_graph import evaluate_graph
from tunefarm.compiler.plan.optimise import optimise_for
from tunefarm.compiler.runtime.artefact.array_files import as_stored, read_input, write_outputs
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.extents import (
    Given,
    Shapes,
    extent_of,
    is_name,
    open_shapes,
    shapes_from_json,
)
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.compiler.types.structure import plain
from tunefarm.compiler.types.tensor_type import Array, TensorType
from tunefarm.measure.sandbox.messages import Message
from tunefarm.measure.sandbox.worker_settings import WorkerSettings
from tunefarm.tuner.commands.accuracy import error_of
from tunefarm.tuner.commands.engines import onnxruntime_session
from tunefarm.tuner.confirm.drawn_inputs import seeded_inputs

Arrays: TypeAlias = Mapping[str, Array]

PREPARED, VALUES, INPUTS = "prepared.onnx", "values.npz", "inputs.npz"
"""The files of the folder: the whole model with types, its recorded values, its inputs."""
ALL_VALUES = "all_values.onnx"
_FUNCTION = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)")


class Outcome(NamedTuple):
    """How a check ended: `kind` is compared, `text` is for people, `fails` is what was looked
    for."""

    kind: str
    text: str = ""
    fails: bool = False


PASSES = Outcome("passes", "the model passes the check")


@dataclass(frozen=True, slots=True)
class Check:
    """What is checked and how models are built for it.

    `name` is one of CHECKS, FILE.py:FUNCTION or a command; `db` is a database whose records are
    used, None for default schedules; `shapes` are as in `shapes_to_json`.
    """

    name: str
    tolerance: float = 1e-3
    threads: int = 1
    numerics: str = "default"
    db: str | None = None
    shapes: Mapping[str, Any] | None = None

    def of(self, model: str, inputs: Arrays, files: tuple[str, str]) -> Outcome:
        """The outcome for a model; `files` are those of the model and its inputs."""
        if self.name in CHECKS:
            return CHECKS[self.name](self, model, inputs)
        if found := _FUNCTION.fullmatch(self.name):
            return _of_function(found["file"], found["name"], model, inputs)
        return _of_command([*shlex.split(self.name), *files])

    def build(self, model: str, inputs: Arrays) -> Executable:
        """Our build of a file, for the shapes that its inputs have or are given."""
        shapes = self._shapes(declared_model(model).inputs, inputs)
        if self.db is None:
            return compiler.build(
                model, threads=self.threads, shapes=shapes, numerics=self.numerics
            )
        from tunefarm.configs.settings import load_settings
        from tunefarm.tuner.building.flow import build_loaded
        from tunefarm.tuner.building.request import BuildRequest

        values = {
            "database.url": self.db,
            "compile.threads": self.threads,
            "compile.numerics": self.numerics,
        }
        return build_loaded(BuildRequest(model, "", load_settings(None, values), shapes))[0]

    def run(self, model: str, inputs: Arrays) -> dict[str, Array]:
        """The outputs of our build."""
        return plain(self.build(model, inputs).run(inputs))

    def draw(self, ports: Iterable[DeclaredPort], given: Arrays) -> dict[str, Array]:
        """The inputs: those that are given, others random. Raises InputError."""
        ports = list(ports)
        for name in given.keys() - {port.name for port in ports}:
            raise InputError(f"the model has no input {name!r}")
        types: dict[str, TensorType] = {}
        for port in ports:
            if port.name not in given:
                if port.dtype is None or port.shape is None:
                    hint = f"--input {port.name}=VALUE, or {port.name}=FILE.npy"
                    raise InputError(f"no value can be drawn for input {port.name!r}", hint=hint)
                types[port.name] = TensorType(port.dtype, self._drawn_shape(port))
        drawn = seeded_inputs(types)
        return {port.name: {**drawn, **given}[port.name] for port in ports}

    def _drawn_shape(self, port: DeclaredPort) -> tuple[int, ...]:
        """The shape of an input that is drawn: 1 where nothing says more."""
        given = self._given()
        numbers = {name: _middle(shape[0]) for name, shape in given.items() if len(shape) == 1}
        declared = port.shape or ()
        if port.name in given and len(given[port.name]) == len(declared):
            return tuple(map(_middle, given[port.name]))
        found = []
        for size in declared:
            known = expression_size(size, numbers) if isinstance(size, str) else size
            found.append(known if isinstance(known, int) else 1)
        return tuple(found)

    def _shapes(self, ports: Iterable[DeclaredPort], inputs: Arrays) -> Shapes:
        """What a build is given: what the user said, else the inputs' sizes."""
        given, found = self._given(), dict[str, Sequence[Given]]()
        for port in ports:
            if not port.is_open or port.dtype is None or port.name not in inputs:
                continue
            actual = inputs[port.name].shape
            if port.name in given:
                found[port.name] = given[port.name]
            elif port.shape is None or None in port.shape:
                found[port.name] = actual
            else:
                for size, number in zip(port.shape, actual, strict=False):
                    if isinstance(size, str) and is_name(size):
                        found[size] = given.get(size, (number,))
        return found

    def _given(self) -> dict[str, Sequence[Given]]:
        return open_shapes(shapes_from_json(self.shapes or {}))


class ReduceRole:
    """Prepares a model and checks parts of it, one at a time."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._folder = Path(settings.scratch)

    def answer(self, message: Message) -> Message:
        """An Outcome; of `record` the types of the recorded values as well."""
        fields = message.fields
        check, model = Check(**fields["check"]), str(fields["model"])
        files = (model, str(fields["inputs"]))
        try:
            if fields["action"] == "draw":
                ports = list(declared_model(model).inputs)
                types = {
                    port.name: TensorType(port.dtype, (1,) * len(port.shape))
                    for port in ports
                    if port.dtype is not None and port.shape is not None
                }
                given = {n: read_input(text, types.get(n)) for n, text in fields["given"].items()}
                inputs = check.draw(ports, given | _read(fields["inputs"], ports))
                write_outputs(inputs, str(self._folder / INPUTS))
                return _reply(PASSES)
            inputs = _read(files[1], declared_model(model).inputs)
            if fields["action"] == "record":
                values = self._record(check, model, inputs, fields["engine"])
                types = {n: DType.from_numpy(a.dtype).value for n, a in values.items()}
                return Message({**_reply(PASSES).fields, "types": types})
            return _reply(check.of(model, inputs, files))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what parts of a model raise
            text = str(error) if isinstance(error, TunefarmError) else _text(error)
            return _reply(Outcome("error", text))

    def _record(self, check: Check, path: str, inputs: Arrays, engine: str) -> dict[str, Array]:
        """Write the whole model and the values that an engine gives it.

        Without an engine they are random, where their types are known.
        """
        model = whole_model(Path(path))
        wide = str(self._folder / ALL_VALUES)
        write_model(with_all_values(model), wide)
        if engine:
            values = ENGINES[engine](check, wide, inputs)
        else:
            typed = whole_model(Path(path))
            with_types(typed, inputs)
            values = seeded_inputs(
                {
                    port.name: TensorType(port.dtype, _known(port.shape))
                    for port in declared_values(typed)
                    if port.dtype is not None and not port.is_open and port.shape is not None
                }
            )
        with_types(model)
        write_model(model, str(self._folder / PREPARED))
        found = {**values, **inputs}
        kept = {name: array for name, array in found.items() if _is_tensor(array)}
        write_outputs(kept, str(self._folder / VALUES))
        return kept


def read_values(path: Path, types: Mapping[str, str]) -> dict[str, Array]:
    """The recorded values of a file, whose types are known by name."""
    arrays = _arrays(path)
    return {name: _stored(arrays[name], DType(type)) for name, type in types.items()}


def _read(path: str, ports: Iterable[DeclaredPort]) -> dict[str, Array]:
    if not path:
        return {}
    dtypes = {port.name: port.dtype for port in ports}
    return {name: _stored(array, dtypes.get(name)) for name, array in _arrays(Path(path)).items()}


def _arrays(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read as an .npz file: {error}") from error


def _stored(array: Array, dtype: DType | None) -> Array:
    return as_stored(None if dtype is None else TensorType(dtype, array.shape), array)


def _is_tensor(value: object) -> bool:
    """Whether a value is a tensor of numbers, which alone can be cut at."""
    return isinstance(value, np.ndarray) and value.dtype.kind not in "OUS"


def _known(shape: Iterable[int | str | None]) -> tuple[int, ...]:
    return tuple(size for size in shape if isinstance(size, int))


def _middle(given: Given) -> int:
    """A size within an extent: the middle of its bounds, or of those that are its middle ones."""
    extent = extent_of(given)
    if isinstance(extent, int):
        return extent
    parts = extent.parts or ((extent.low or 1, extent.high or extent.low or 1),)
    low, high = parts[len(parts) // 2]
    return (low + high) // 2


def _reply(outcome: Outcome) -> Message:
    kind, text, fails = outcome
    return Message({"kind": kind, "text": text, "fails": fails})


def _text(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _onnxruntime(check: Check, model: str, inputs: Arrays) -> dict[str, Array]:
    return dict(onnxruntime_session(model, check.threads, optimised=False)(inputs))


def _reference(check: Check, model: str, inputs: Arrays) -> dict[str, Array]:
    return plain(reference_outputs(model, inputs))


ENGINES: Mapping[str, Callable[[Check, str, Arrays], dict[str, Array]]] = {
    "onnxruntime": _onnxruntime,
    "reference": _reference,
    "build": Check.run,
}
"""What can record a model's values, the best first."""


def _differs(found: Arrays, expected: Arrays, tolerance: float) -> Outcome:
    """Whether an output is further from the expected one than the tolerance."""
    errors = {name: error_of(np.asarray(found[name]), expected[name]) for name in expected}
    name = max(errors, key=errors.__getitem__, default="")
    if not name or errors[name] <= tolerance:
        return PASSES
    return Outcome("differs", f"output {name!r} differs by {errors[name]:.3g}", fails=True)


def _from_onnxruntime(check: Check, model: str, inputs: Arrays) -> Outcome:
    expected = _onnxruntime(check, model, inputs)
    return _differs(check.run(model, inputs), expected, check.tolerance)


def _from_reference(check: Check, model: str, inputs: Arrays) -> Outcome:
    expected = _reference(check, model, inputs)
    return _differs(check.run(model, inputs), expected, check.tolerance)


def _build(check: Check, model: str, inputs: Arrays) -> Outcome:
    try:
        check.build(model, inputs)
    except Exception as error:  # noqa: BLE001 - a bug of the compiler is reduced too
        return Outcome(f"error {type(error).__name__}", _text(error), fails=True)
    return PASSES


def _stages(check: Check, model: str, inputs: Arrays) -> Outcome:
    """The optimised graph against the imported one, both evaluated node by node in NumPy."""
    graph = import_onnx(model, {name: array.shape for name, array in inputs.items()})
    numerics = Numerics.of(check.numerics)
    optimised = optimise_for(graph, host_target(), numerics=numerics)
    values = [evaluate_graph(g, inputs) for g in (graph, optimised)]
    expected, found = ({name: v[name] for name in graph.outputs} for v in values)
    return _differs(found, expected, check.tolerance)


def _of_function(file: str, name: str, model: str, inputs: Arrays) -> Outcome:
    function = runpy.run_path(file).get(name)
    if not callable(function):
        raise SettingsError(f"{file} has no function {name!r}")
    if function(model, dict(inputs)):
        return Outcome("fails", f"{name} returned True", fails=True)
    return PASSES


def _of_command(command: list[str]) -> Outcome:
    code = subprocess.run(command, check=False).returncode
    if code < 0:
        return Outcome(
            f"ended by {signal.Signals(-code).name}", f"{command[0]} crashed", fails=True
        )
    if code == 0:
        return Outcome("fails", f"{command[0]} exited with 0", fails=True)
    return PASSES


CHECKS: Mapping[str, Callable[[Check, str, Arrays], Outcome]] = {
    "onnxruntime": _from_onnxruntime,
    "reference": _from_reference,
    "build": _build,
    "stages": _stages,
}
