"""InferenceSession: a built model behind the interface that onnxruntime's sessions have.

    import tunefarm

    session = tunefarm.InferenceSession("resnet18.tuned")
    (scores,) = session.run(None, {"input": array})

Names, their order, types and shapes are onnxruntime's. A session has the CPU alone, and what it
cannot do is refused by name. An artefact needs NumPy and llvmlite only; an ONNX file is compiled,
untuned, where the compiler is installed (`tunefarm.InferenceSession` takes a database).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from tunefarm import compiler
from tunefarm.compiler.counted import counted
from tunefarm.compiler.errors import ArtefactError, InputError, SettingsError, UntunedWarning
from tunefarm.compiler.runtime.artefact.artefact import is_artefact
from tunefarm.compiler.runtime.execution.executable import Executable, load
from tunefarm.compiler.runtime.spec.ports import refuse_unknown
from tunefarm.compiler.session.options import (
    CPU,
    SessionOptions,
    check_providers,
    check_run_options,
    threads_of,
)
from tunefarm.compiler.session.ports import NodeArg, inputs_of, outputs_of
from tunefarm.configs.file_kinds import is_onnx

if TYPE_CHECKING:
    from tunefarm.compiler.types.extents import Shapes

_NUMBERS = (list, tuple, int, float)

_INSTEAD: Final = {
    "create_ortvalue_from_shape_and_type": "arrays are NumPy's",
    "end_profiling": "executable.profile times every kernel",
    "io_binding": "executable.bind runs the same arrays again and again",
    "run_async": "run may be called from several threads at once",
    "run_with_iobinding": "executable.bind runs the same arrays again and again",
    "run_with_ort_values": "run takes arrays, and whatever has __dlpack__",
    "run_with_ortvaluevector": "run takes arrays, and whatever has __dlpack__",
    "set_providers": "models run on the CPU",
}
"""What sessions of onnxruntime have and these do not, and what there is in its place."""


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What a model says of itself; `custom_metadata_map` says how it was built."""

    graph_name: str
    custom_metadata_map: dict[str, str] = field(default_factory=dict)
    producer_name: str = "tunefarm"
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0


class InferenceSession:
    """A model that is run as with onnxruntime; `executable` is what runs it."""

    def __init__(
        self,
        path_or_bytes: str | PathLike[str] | Executable,
        sess_options: object = None,
        providers: Sequence[object] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        shapes: Shapes | None = None,
    ) -> None:
        """Load an artefact, or compile an ONNX file with default schedules, or take an Executable.

        `shapes` fixes or bounds what an ONNX file leaves open, as in `tunefarm.compiler.build`. An
        untuned build says so with an `UntunedWarning`. Raises `ArtefactError` for a file that
        cannot be loaded, `ImportModelError` for one that cannot be imported, and `SettingsError`
        for a provider or an option that there is not.
        """
        check_providers(providers, provider_options)
        self._options = SessionOptions() if sess_options is None else sess_options
        threads = threads_of(self._options)
        if isinstance(path_or_bytes, Executable):
            self.executable = _taken(path_or_bytes, threads, shapes)
        else:
            self.executable = self._opened(path_or_bytes, threads, shapes)
        self._inputs, self._outputs = inputs_of(self.executable), outputs_of(self.executable)
        self._names = [port.name for port in self._outputs]
        texts = self.executable.spec.structure.texts
        self._dtypes = {n: t.dtype for n, t in self.executable.inputs.items() if n not in texts}

    def _opened(
        self, given: str | PathLike[str], threads: int | None, shapes: Shapes | None
    ) -> Executable:
        if isinstance(given, bytes | bytearray | memoryview):
            raise ArtefactError(
                "a session is made of a file, not of its bytes",
                hint="write them to a file and give its name",
            )
        path = fspath(given)
        if not is_artefact(path) and (path.endswith(".onnx") or is_onnx(path)):
            return self.build(path, threads, shapes)
        if shapes and is_artefact(path):
            raise SettingsError(
                f"{path} is built already, so that it takes no shapes",
                hint="give them where it is built",
            )
        return load(path, threads)

    def build(self, path: str, threads: int | None, shapes: Shapes | None) -> Executable:
        """Compile an ONNX file for the session; one thread if `threads` is None."""
        executable = compiler.build(path, threads=threads or 1, shapes=shapes)
        warnings.warn(
            f"{path} is built untuned, and anew for each session: tune build makes a file of it",
            UntunedWarning,
            stacklevel=4,
        )
        return executable

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, object],
        run_options: object = None,
    ) -> list[Any]:
        """Run the model; the outputs of these names in their order, or all (None, or no names).

        Inputs are those of `Executable.run`, by name; lists of numbers are taken too. All outputs
        are computed, whichever are asked for. Raises `InputError` for names that the model does not
        have, and for inputs that are missing or of another type or shape.
        """
        if run_options is not None:
            check_run_options(run_options)
        if isinstance(output_names, str):
            raise InputError("outputs are a list of names, or None", hint=f"[{output_names!r}]")
        refuse_unknown("output", self._names, output_names or ())
        feed = input_feed
        if isinstance(feed, Mapping) and any(isinstance(v, _NUMBERS) for v in feed.values()):
            feed = {name: self._as_array(name, value) for name, value in feed.items()}
        results = self.executable.run(feed)
        return [results[name] for name in output_names or self._names]

    def _as_array(self, name: str, value: object) -> object:
        """Numbers as an array of the input's type; anything else as it is."""
        dtype = self._dtypes.get(name)
        if dtype is None or not isinstance(value, _NUMBERS):
            return value
        try:
            return np.asarray(value, dtype.numpy)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"input {name!r} cannot be read as {dtype}: {error}") from error

    def get_inputs(self) -> list[NodeArg]:
        """The inputs in the model's order."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """The outputs in the model's order."""
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: constants are packed when a model is built."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """The model's name, and how it was built."""
        spec = self.executable.spec
        built = {
            "target": spec.target.cpu,
            "threads": str(spec.threads),
            "numerics": spec.numerics,
        }
        return ModelMetadata(spec.name, built)

    def get_providers(self) -> list[str]:
        """The CPU's alone."""
        return [CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The CPU's, which has none."""
        return {CPU: {}}

    def get_session_options(self) -> object:
        """The options that the session was made with."""
        return self._options

    def disable_fallback(self) -> None:
        """Do nothing: there is no other provider to fall back on."""

    def enable_fallback(self) -> None:
        """Do nothing: there is no other provider to fall back on."""

    def __repr__(self) -> str:
        return f"<InferenceSession of {self.executable!r}>"

    if not TYPE_CHECKING:  # to a type checker a name that is not there stays an error

        def __getattr__(self, name: str) -> NoReturn:
            """Name what onnxruntime has and this has not, and what to use in its place."""
            instead = _INSTEAD.get(name)
            more = f": {instead}" if instead else ""
            raise AttributeError(f"tunefarm's InferenceSession has no {name}{more}")


def get_available_providers() -> list[str]:
    """The execution providers that there are: the CPU's."""
    return [CPU]


def _taken(executable: Executable, threads: int | None, shapes: Shapes | None) -> Executable:
    if shapes or threads not in (None, executable.threads):
        raise SettingsError(
            f"the executable is built, and loaded for {counted(executable.threads, 'thread')}",
            hint="shapes and threads are given where it is built or loaded",
        )
    return executable
