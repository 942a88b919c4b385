"""InferenceSession: a model behind the interface that onnxruntime's sessions have.

    import tunefarm

    session = tunefarm.InferenceSession("resnet18.tuned")
    (scores,) = session.run(None, {"input": array})

Names, their order, types and shapes are onnxruntime's. A session has the CPU alone; what would
change results and cannot be done is refused by name. An artifact needs NumPy and llvmlite only; an
ONNX file is compiled, untuned, where the compiler is installed (`tunefarm.InferenceSession` takes a
database).
"""

from __future__ import annotations

import shutil
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from tunefarm import compiler
from tunefarm.compiler.errors import (
    ComputedOutputError,
    ImportModelError,
    InputError,
    SettingsError,
    TunefarmError,
    UntunedWarning,
    system_errors_as,
    with_count,
)
from tunefarm.compiler.runtime.artefact.artefact import is_artefact
from tunefarm.compiler.runtime.execution.executable import Executable, load
from tunefarm.compiler.runtime.spec.ports import refuse_unknown
from tunefarm.compiler.session.builds_by_size import BuildsBySize, with_computed_bounds
from tunefarm.compiler.session.options import (
    CPU,
    DATA_FOLDER,
    LOG,
    SessionOptions,
    check_options,
    check_run_options,
    config_entry,
    note_providers,
    threads_of,
)
from tunefarm.compiler.session.ort_values import IOBinding, OrtValue
from tunefarm.compiler.session.ports import NodeArg, inputs_of, outputs_of, type_text
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.extents import Shapes
from tunefarm.compiler.types.metadata import Metadata
from tunefarm.configs.file_kinds import is_onnx

if TYPE_CHECKING:
    from tunefarm.compiler.frontend.declared_ports import DeclaredModel, DeclaredPort
    from tunefarm.compiler.runtime.spec.ports import AnyArray
    from tunefarm.compiler.types.extents import Shapes


INTERFACE_VERSION: Final = "1.32.0"
"""The release of onnxruntime whose interface sessions follow: for programs that ask for one."""
_NUMBERS = (list, tuple, int, float)

_INSTEAD: Final = {
    "run_with_ortvaluevector": "run takes arrays, and whatever has __dlpack__",
}
"""What sessions of onnxruntime have and these do not, and what replaces it."""
_PRIVATE: Final = {
    "_inputs_meta": "get_inputs",
    "_model_meta": "get_modelmeta",
    "_outputs_meta": "get_outputs",
    "_provider_options": "get_provider_options",
    "_providers": "get_providers",
    "_sess_options": "get_session_options",
}
"""Attributes that programs read of onnxruntime's sessions, although they are private there."""


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What a model's file says of the model.

    `custom_metadata_map` has its own keys, and how it was built under keys that begin with
    `tunefarm.`.
    """

    graph_name: str
    custom_metadata_map: dict[str, str] = field(default_factory=dict)
    producer_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0


class InferenceSession:
    """A model that is run as with onnxruntime.

    `executable` is what runs it; of a model that leaves sizes open and was given no `shapes` what
    served the last run, and `builds` are all.
    """

    def __init__(
        self,
        path_or_bytes: str | PathLike[str] | bytes | Executable,
        sess_options: object = None,
        providers: Sequence[object] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        shapes: Shapes | None = None,
        inputs: Mapping[str, object] | None = None,
        **ignored: object,
    ) -> None:
        """Load an artifact, or compile an ONNX file with default schedules, or take an Executable.

        A file may be given as its bytes. `shapes` fixes or bounds what an ONNX file leaves open,
        and `inputs` fixes values, as in `tunefarm.compiler.build`; without `shapes` such a file is
        built for the sizes of the first run, and for a range once they vary. An untuned build says
        so with an `UntunedWarning`. Raises `ArtefactError` for a file that cannot be loaded,
        `ImportModelError` for one that cannot be imported, and `SettingsError` for an option that
        would change results and cannot be followed.
        """
        note_providers(providers, provider_options)
        for name in ignored:
            LOG.debug("the argument %s of a session means nothing here", name)
        self._options = SessionOptions() if sess_options is None else sess_options
        check_options(self._options)
        self._threads = threads_of(self._options)
        self._inputs_fixed = inputs
        self._model_path: str | None = None  # of a file, as onnxruntime's sessions name it
        self._folder: str | None = None  # of a model that is not the file that was given
        self._is_profiling = bool(getattr(self._options, "enable_profiling", False))
        self._profiling_start = time.perf_counter_ns() if self._is_profiling else 0
        self._profiled: Mapping[str, Any] | None = None  # the inputs of the last run then
        self._executor: ThreadPoolExecutor | None = None
        self._dtypes: Mapping[str, DType] | None = None  # until something is built
        self.builds: BuildsBySize | None = None
        self._executable: Executable | None = None
        if isinstance(path_or_bytes, Executable):
            _refuse_initializers(self._options, "the executable")
            self._executable = _taken(path_or_bytes, self._threads, shapes)
        else:
            self._open(path_or_bytes, shapes or {})
        if self._executable is not None:
            self._take_ports(self._executable)

    @property
    def executable(self) -> Executable:
        """What runs the model; raises `SettingsError` before the first run with dynamic shapes."""
        found = self._executable or (self.builds and self.builds.latest)
        if not found:
            raise SettingsError(
                "the model has dynamic dimensions, and nothing is built before the first run",
                hint="give the session shapes, or run it first",
            )
        return found

    def _take_ports(self, executable: Executable) -> None:
        spec = executable.spec
        defaults = {port.name for port in spec.structure.defaults}
        inputs = inputs_of(executable)
        self._inputs = [port for port in inputs if port.name not in defaults]
        self._overridable = [port for port in inputs if port.name in defaults]
        self._outputs = outputs_of(executable)
        self._names = [port.name for port in self._outputs]
        self._metadata, self._name = spec.metadata, spec.name
        self._dtypes = _dtypes_of(executable)

    def _declare(self, model: DeclaredModel) -> None:
        """Tell of a model what its file declares, until it is built."""
        self._inputs = [_declared(port) for port in model.inputs]
        self._outputs = [_declared(port) for port in model.outputs]
        self._names = [port.name for port in self._outputs]
        self._metadata, self._name = model.metadata, model.name
        self._overridable = [_declared(port) for port in model.defaults]

    def _open(self, given: str | PathLike[str] | bytes, shapes: Shapes) -> None:
        if isinstance(given, bytes | bytearray | memoryview):
            folder = config_entry(self._options, DATA_FOLDER) or "."
            self._open_given(bytes(given), Path(folder), shapes)
            return
        path = self._model_path = fspath(given)
        if is_artefact(path) or not _has_initializers(self._options):
            self._open_file(path, shapes)
        else:
            with system_errors_as(ImportModelError, f"read {path}"):
                data = Path(path).read_bytes()
            self._open_given(data, Path(path).parent, shapes)

    def _open_given(self, data: bytes, folder: Path, shapes: Shapes) -> None:
        """Open a model from a temporary file; its external data lies in the folder."""
        self._folder = tempfile.mkdtemp(prefix="tunefarm-session-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        path = Path(self._folder) / "model"
        path.write_bytes(data)
        try:
            if not is_artefact(path):
                _write_onnx(data, folder, self._options, path)
            self._open_file(str(path), shapes)
        except TunefarmError as error:  # which knows the name of the temporary file
            texts = (error.message, error.hint)
            message, hint = (text.replace(str(path), "the model") for text in texts)
            raise type(error)(message, program=error.program, hint=hint) from error

    def _open_file(self, path: str, shapes: Shapes) -> None:
        if not is_artefact(path) and (path.endswith(".onnx") or is_onnx(path)):
            self._open_onnx(path, shapes)
            self._write_optimized(path)
            return
        _refuse_initializers(self._options, path)
        if shapes and is_artefact(path):
            raise SettingsError(
                f"{path} is built already, so that it takes no shapes",
                hint="give them where it is built",
            )
        self._executable = load(path, self._threads)

    def _write_optimized(self, path: str) -> None:
        """Write the ONNX file that the options ask for: the model as it is, since what is done to a
        graph here is no ONNX."""
        target = getattr(self._options, "optimized_model_filepath", "")
        if target:
            from tunefarm.compiler.frontend.read_model import copy_model

            try:
                copy_model(path, fspath(target))
            except OSError as error:
                raise SettingsError(f"cannot write {target}: {error.strerror or error}") from error

    def _open_onnx(self, path: str, shapes: Shapes) -> None:
        name = path if self._folder is None else "the model"
        shapes = {**self._symbol_sizes(path), **shapes}
        model = None if shapes or self._inputs_fixed else _read(path)
        if model is None or not model.is_open:
            self._executable, note = with_computed_bounds(
                lambda given: self.build(path, self._threads, given, self._inputs_fixed), shapes
            )
            self._warn(note)
            return
        self._declare(model)
        self.builds = BuildsBySize(
            path,
            self._inputs,
            lambda sizes: self.build(path, self._threads, sizes, None)[0],
            model.range_of,
            [port.name for port in model.inputs if port.shape is None],
            [port.name for port in model.defaults],
        )
        self._warn(
            f"{name} has dynamic dimensions: it is built for the sizes of each run, and for a "
            "range once they vary; to build ahead of time: "
            f"{model.build_command('model.onnx' if self._folder else path)}"
        )

    def _symbol_sizes(self, path: str) -> Shapes:
        """What the options give to symbols that the model has; as with onnxruntime, others may be
        named."""
        sizes = getattr(self._options, "symbol_sizes", {})
        model = _read(path) if sizes else None
        known = () if model is None else model.symbols
        return {name: (size,) for name, size in sizes.items() if name in known}

    def _warn(self, note: str) -> None:
        if note:
            level = 6 if type(self) is InferenceSession else 7  # who makes the session
            warnings.warn(note, UntunedWarning, stacklevel=level)

    def build(
        self,
        path: str,
        threads: int | None,
        shapes: Shapes,
        inputs: Mapping[str, object] | None,
    ) -> tuple[Executable, str]:
        """Compile an ONNX file for the session, and what to say of it; one thread if `threads` is
        None."""
        executable = compiler.build(path, threads=threads or 1, shapes=shapes, inputs=inputs)
        name = path if self._folder is None else "the model"
        return executable, (
            f"{name} is built untuned, and anew for each session: tune build makes a file of it"
        )

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, object],
        run_options: object = None,
    ) -> list[Any]:
        """Run the model; the outputs of these names in their order, or all (None, or no names).

        Inputs are those of `Executable.run`, by name; lists of numbers and OrtValues are taken too.
        All outputs are computed, whichever are asked for. Raises `InputError` for names that the
        model does not have, and for inputs that are missing or of another type or shape.
        """
        if run_options is not None:
            check_run_options(run_options)
        if isinstance(output_names, str):
            raise InputError("outputs are a list of names, or None", hint=f"[{output_names!r}]")
        refuse_unknown("output", self._names, output_names or ())
        results = self.run_arrays(input_feed)
        return [results[name] for name in output_names or self._names]

    def run_arrays(
        self, feed: Mapping[str, Any], out: Mapping[str, AnyArray] | None = None
    ) -> dict[str, Any]:
        """Run the model; the outputs by name, new arrays or those in `out`. Raises `InputError`."""
        executable, feed = self._executable, _arrays_of(feed)
        if executable is None:
            assert self.builds is not None
            executable = self.builds.executable_for(feed)
            if self._dtypes is None:
                self._dtypes = _dtypes_of(executable)
        if isinstance(feed, Mapping) and any(isinstance(v, _NUMBERS) for v in feed.values()):
            feed = {name: self._as_array(name, value) for name, value in feed.items()}
        if self._is_profiling:
            self._profiled = feed
        try:
            return executable.run(feed, out)
        except ComputedOutputError:
            raise
        except InputError:
            if self.builds is None or not self.builds.is_range(executable):
                raise
        return self.builds.exact_for(feed).run(feed, out)  # of sizes that the range does not serve

    def _as_array(self, name: str, value: object) -> object:
        """Numbers as an array of the input's type; anything else as it is."""
        dtype = (self._dtypes or {}).get(name)
        if dtype is None or not isinstance(value, _NUMBERS):
            return value
        try:
            return np.asarray(value, dtype.numpy)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"input {name!r} cannot be read as {dtype}: {error}") from error

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, object],
        callback: Callable[[list[Any], Any, str], None],
        user_data: object,
        run_options: object = None,
    ) -> None:
        """Run the model in another thread, then call `callback(results, user_data, error)`.

        `error` is "" if it went well; else there are no results.
        """
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "run_async")

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as failure:  # noqa: BLE001 - whoever asked gets it
                results, error = [], str(failure)
            callback(results, user_data, error)

        self._executor.submit(work)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, Any],
        run_options: object = None,
    ) -> list[OrtValue]:
        """As `run`, with arrays in the form of OrtValues."""
        results = self.run(output_names, input_dict_ort_values, run_options)
        return [OrtValue(value) for value in results]

    def io_binding(self) -> IOBinding:
        """Inputs and outputs of later runs, to be bound by name."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: object = None) -> None:
        """Run the model on what is bound. Raises `InputError` as `run` does."""
        if run_options is not None:
            check_run_options(run_options)
        iobinding.run()

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: object = np.float32, *device: object
    ) -> OrtValue:
        """A new array of any content."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type)

    def get_profiling_start_time_ns(self) -> int:
        """When the session was made, by a clock of its own; 0 where nothing is profiled."""
        return self._profiling_start

    def end_profiling(self) -> str:
        """Write a trace of the kernels, for Perfetto or chrome://tracing; the file's name.

        Its times are of runs with the inputs of the last one. The name is "" where the options do
        not say `enable_profiling`, or nothing was run.
        """
        if self._profiled is None:
            return ""
        profile = self.executable.profile(self._profiled)
        self._profiled = None
        return profile.write_trace(getattr(self._options, "profile_file_prefix", "profile_"))

    @property
    def input_names(self) -> list[str]:
        """The names of all that a run may be given."""
        return [port.name for port in (*self._inputs, *self._overridable)]

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs in the model's order."""
        return list(self._names)

    def get_inputs(self) -> list[NodeArg]:
        """The inputs in the model's order."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """The outputs in the model's order."""
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The inputs that a run may leave out; other constants are packed when a model is built."""
        return list(self._overridable)

    def get_modelmeta(self) -> ModelMetadata:
        """What the model's file says of the model, and how it was built."""
        own: Metadata = self._metadata
        entries = dict(own.properties)
        if self._executable is not None:
            spec = self._executable.spec
            entries["tunefarm.target"] = spec.target.cpu
            entries["tunefarm.threads"] = str(spec.threads)
            entries["tunefarm.numerics"] = spec.numerics
        return ModelMetadata(
            self._name,
            entries,
            own.producer,
            own.domain,
            own.description,
            own.graph_description,
            own.version,
        )

    def get_providers(self) -> list[str]:
        """The CPU's alone."""
        return [CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The CPU's, which has none."""
        return {CPU: {}}

    def set_providers(
        self,
        providers: Sequence[object] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Do nothing: models run on the CPU."""
        note_providers(providers, provider_options)

    def get_session_options(self) -> object:
        """The options that the session was made with."""
        return self._options

    def disable_fallback(self) -> None:
        """Do nothing: there is no other provider to fall back on."""

    def enable_fallback(self) -> None:
        """Do nothing: there is no other provider to fall back on."""

    def __getstate__(self) -> NoReturn:  # what classes that are pickled by a path replace
        raise TypeError(
            "a session has code in this process, and can be neither pickled nor copied: "
            "make one in each process, or share it among threads"
        )

    def __repr__(self) -> str:
        what = self._executable or (self.builds and self.builds.latest) or self._name
        return f"<InferenceSession of {what}>"

    if not TYPE_CHECKING:  # to a type checker a name that is not there stays an error

        def __getattr__(self, name: str) -> Any:
            """Name what onnxruntime has and this has not, and what to use in its place."""
            if name == "_sess":  # what onnxruntime's session wraps
                return self
            if name in _PRIVATE:
                return getattr(self, _PRIVATE[name])()
            instead = _INSTEAD.get(name)
            more = f": {instead}" if instead else ""
            raise AttributeError(f"tunefarm's InferenceSession has no {name}{more}")


def get_available_providers() -> list[str]:
    """The execution providers that there are: the CPU's."""
    return [CPU]


def get_all_providers() -> list[str]:
    """The execution providers that there could be: the CPU's."""
    return [CPU]


def get_device() -> str:
    """What models run on."""
    return "CPU"


def set_default_logger_severity(severity: int) -> None:
    """Log what is as severe as this: 0 everything, 1 notes, 2 warnings, 3 errors, 4 nothing less
    than fatal."""
    levels = (10, 20, 30, 40, 50)
    if not 0 <= severity < len(levels):
        raise SettingsError(f"the severity {severity} is none: it must be 0 to 4")
    LOG.setLevel(levels[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    """Do nothing: one level of notes is all that there is."""


def get_build_info() -> str:
    """The version of the compiler, which records and artifacts have too."""
    return f"tunefarm, compiler version {compiler.VERSION}"


def get_version_string() -> str:
    """The release of onnxruntime whose interface sessions follow."""
    return INTERFACE_VERSION


def set_seed(seed: int) -> None:
    """Do nothing: random operators draw their numbers when a model is built, always the same."""
    LOG.debug("the seed %d means nothing here: each build draws the same numbers", seed)


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """Do nothing: the CPU needs no other libraries."""


def disable_telemetry_events() -> None:
    """Do nothing: there are none."""


def enable_telemetry_events() -> None:
    """Do nothing: there are none."""


def _arrays_of(feed: Any) -> Any:
    """The inputs of a run, with arrays instead of OrtValues, be they onnxruntime's."""
    if isinstance(feed, Mapping) and any(map(_is_ort_value, feed.values())):
        return {name: v.numpy() if _is_ort_value(v) else v for name, v in feed.items()}
    return feed


def _dtypes_of(executable: Executable) -> dict[str, DType]:
    """The element types of inputs but those of strings."""
    texts = executable.spec.structure.texts
    return {name: t.dtype for name, t in executable.inputs.items() if name not in texts}


def _is_ort_value(value: object) -> bool:
    return hasattr(value, "ortvalue_from_numpy")


def _has_initializers(options: object) -> bool:
    """Whether options give arrays or files of data instead of a model's own."""
    names = ("shared_initializers", "external_initializers", "files_in_memory")
    return any(getattr(options, name, None) for name in names)


def _refuse_initializers(options: object, built: str) -> None:
    if _has_initializers(options):
        raise SettingsError(
            f"{built} is built already, so that its initializers cannot be replaced",
            hint="give the session the ONNX file",
        )


def _write_onnx(data: bytes, folder: Path, options: object, target: Path) -> None:
    """Write an ONNX model with what the options give to it."""
    if not _has_initializers(options) and b"location" not in data:  # the key of external data
        return
    try:
        from tunefarm.compiler.frontend.given_model import GivenData, write_given
    except ModuleNotFoundError:
        return
    given = (
        getattr(options, "files_in_memory", {}),
        getattr(options, "shared_initializers", {}),
        getattr(options, "external_initializers", {}),
    )
    write_given(data, GivenData(folder.absolute(), *given), target)


def _read(path: str) -> DeclaredModel | None:
    """What a file declares; None where no model can be read, as the build will say."""
    try:
        from tunefarm.compiler.frontend.declared_ports import declared_model
    except ModuleNotFoundError:
        return None
    return declared_model(path)


def _declared(port: DeclaredPort) -> NodeArg:
    """A port as onnxruntime tells it: the shape of what has no known rank is empty."""
    type = "seq" if port.dtype is None else type_text(port.dtype)
    return NodeArg(port.name, type, list(port.shape or ()))


def _taken(executable: Executable, threads: int | None, shapes: Shapes | None) -> Executable:
    if shapes or threads not in (None, executable.threads):
        raise SettingsError(
            f"the executable is built, and loaded for {with_count(executable.threads, 'thread')}",
            hint="shapes and threads are given where it is built or loaded",
        )
    return executable
