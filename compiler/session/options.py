"""Options and providers of sessions and runs, with the names that onnxruntime has for them.

What has no meaning here is accepted and logged at debug level, so that programs which set it go on.
What would change results and cannot be done is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import IntEnum
from operator import index
from typing import Any, Final, SupportsIndex, TypeVar

from tunefarm.compiler.errors import SettingsError

T = TypeVar("T")

CPU: Final = "CPUExecutionProvider"
LOG: Final = logging.getLogger("tunefarm.session")
DATA_FOLDER: Final = "session.model_external_initializers_file_folder_path"
"""The entry that names the folder of external data, for a model that is given as bytes."""


class _Named(IntEnum):
    """Numbers that print as onnxruntime's do, by their names."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class GraphOptimizationLevel(_Named):
    """How much onnxruntime rewrites a graph; of no meaning here."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_Named):
    """Whether onnxruntime runs nodes in parallel; kernels here run one after another."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_Named):
    """In which order onnxruntime runs nodes; of no meaning here."""

    DEFAULT = 0
    PRIORITY_BASED = 1


class _Entries:
    """Configuration entries by name, of which `DATA_FOLDER` alone is read."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def _add(self, key: str, value: str) -> None:
        if key != DATA_FOLDER:
            LOG.debug("the configuration entry %s=%s means nothing here", key, value)
        self._entries[key] = value

    def _get(self, key: str) -> str:
        if key not in self._entries:
            raise SettingsError(f"there is no configuration entry {key!r}")
        return self._entries[key]


class SessionOptions(_Entries):
    """Options of a session; those of onnxruntime itself may be given in their place.

    `intra_op_num_threads`: threads of a run; 0: those that an artifact was built for; for an ONNX
    file those of the configuration, and all cores where no database has records for a number.
    `add_free_dimension_override_by_name` gives a symbol of an ONNX file its size, and the
    `add_…initializers` methods give arrays and files of data instead of the model's own. With
    `enable_profiling` the session's `end_profiling` writes a trace, and to
    `optimized_model_filepath` an ONNX file is written as it is. The rest says nothing here. An
    attribute that options do not have cannot be set.
    """

    __slots__ = (
        "enable_cpu_mem_arena",
        "enable_mem_pattern",
        "enable_mem_reuse",
        "enable_profiling",
        "execution_mode",
        "execution_order",
        "external_initializers",
        "files_in_memory",
        "graph_optimization_level",
        "inter_op_num_threads",
        "intra_op_num_threads",
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "optimized_model_filepath",
        "profile_file_prefix",
        "shared_initializers",
        "symbol_sizes",
        "use_deterministic_compute",
        "use_per_session_threads",
    )

    def __init__(self, **values: object) -> None:
        """`values` are attributes to begin with."""
        super().__init__()
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.enable_profiling = False
        self.profile_file_prefix = "onnxruntime_profile_"
        self.optimized_model_filepath = ""
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order = ExecutionOrder.DEFAULT
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.use_deterministic_compute = False
        self.use_per_session_threads = True
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.symbol_sizes: dict[str, int] = {}
        self.shared_initializers: dict[str, object] = {}
        self.external_initializers: dict[str, object] = {}
        self.files_in_memory: dict[str, bytes] = {}
        for name, value in values.items():
            if not hasattr(self, name):
                raise TypeError(f"SessionOptions has no {name}")
            setattr(self, name, value)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep a configuration entry, which means nothing here."""
        self._add(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """An entry that was added; raises `SettingsError` for any other."""
        return self._get(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Give a symbol of an ONNX file its size."""
        self.symbol_sizes[name] = int(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Do nothing: sizes come with the first run."""
        LOG.debug("the size %d of dimensions denoted %s comes with the first run", size, denotation)

    def add_initializer(self, name: str, value: object) -> None:
        """Use this array or OrtValue for an initializer of ONNX files that have it."""
        if name in self.shared_initializers:
            raise SettingsError(f"the initializer {name!r} was added before")
        self.shared_initializers[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[object]) -> None:
        """Use these arrays or OrtValues for initializers, which an ONNX file must have."""
        self.external_initializers.update(_paired("initializers", names, values))

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[bytes], lengths: Sequence[int]
    ) -> None:
        """Use these bytes for the files of external data that an ONNX file names."""
        sizes = _paired("lengths", names, lengths)
        for name, buffer in _paired("buffers", names, buffers).items():
            self.files_in_memory[name] = bytes(memoryview(buffer).cast("B")[: sizes[name]])

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Do nothing: models run on the CPU."""
        note_providers([(name, options)], None)

    def add_provider_for_devices(
        self, devices: Sequence[object], options: Mapping[str, str]
    ) -> None:
        """Do nothing: models run on the CPU."""

    def has_providers(self) -> bool:
        """No: there is the CPU's alone, without being asked for."""
        return False

    def set_provider_selection_policy(self, policy: object) -> None:
        """Do nothing: models run on the CPU."""

    def set_provider_selection_policy_delegate(self, delegate: object) -> None:
        """Do nothing: models run on the CPU."""

    def set_load_cancellation_flag(self, cancelled: bool) -> None:
        """Raise `SettingsError` for a build that is to be cancelled."""
        if cancelled:
            raise SettingsError(
                "a build cannot be cancelled by options", hint="do not make the session"
            )

    def register_custom_ops_library(self, path: str) -> None:
        """Raise `SettingsError`: operators are registered as functions."""
        raise SettingsError(
            f"{path} has kernels for onnxruntime alone",
            hint="tunefarm.register_function binds operators to Python or C",
        )


class RunOptions(_Entries):
    """Options of a run, which say nothing here; `terminate` must stay false."""

    __slots__ = (
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "only_execute_path_to_fetches",
        "terminate",
        "training_mode",
    )

    def __init__(self) -> None:
        super().__init__()
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self.terminate = False
        self.training_mode = False

    def add_active_adapter(self, adapter: object) -> None:
        """Raise `SettingsError`: the weights of an adapter are inputs like others."""
        raise SettingsError(
            "a run takes no LoRA adapter",
            hint="give its weights by name, as inputs of the run: those of "
            "onnxruntime.AdapterFormat.read_adapter(path).get_parameters()",
        )

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep a configuration entry, which means nothing here."""
        self._add(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """An entry that was added; raises `SettingsError` for any other."""
        return self._get(key)


def check_options(options: object) -> None:
    """Raise `SettingsError` unless these can be a session's options."""
    if not hasattr(options, "intra_op_num_threads"):
        raise SettingsError(
            f"sess_options is of the type {type(options).__name__}",
            hint="give a tunefarm.SessionOptions, or one of onnxruntime",
        )


def threads_of(options: object) -> int | None:
    """The threads that options of a session ask for, None if they leave that open.

    A number below 0 leaves it open, as with onnxruntime. Raises `SettingsError` for what is none.
    """
    if getattr(options, "inter_op_num_threads", 0):
        LOG.debug("inter_op_num_threads means nothing here: kernels run one after another")
    given = getattr(options, "intra_op_num_threads", 0)
    if not isinstance(given, SupportsIndex):
        raise SettingsError(f"intra_op_num_threads is {given!r}: it must be an integer")
    return max(index(given), 0) or None


def config_entry(options: object, key: str) -> str | None:
    """A configuration entry of options of either kind; None if it was not added."""
    try:
        found: str = options.get_session_config_entry(key)  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):
        return None
    return found


def check_run_options(options: object) -> None:
    """Raise `SettingsError` for what a run cannot do."""
    if getattr(options, "terminate", False):
        raise SettingsError("a run cannot be ended by its options: terminate must be false")
    if getattr(options, "training_mode", False):
        raise SettingsError("a model is built for inference: training_mode must be false")


def note_providers(
    providers: Sequence[object] | None, options: Sequence[Mapping[str, Any]] | None
) -> None:
    """Log what is asked of providers: there is the CPU's, without options.

    As with onnxruntime others may be named, and what is not there is passed over.
    """
    for number, provider in enumerate(providers or ()):
        name, own = provider if isinstance(provider, tuple) else (provider, {})
        if name != CPU:
            LOG.debug("there is no provider %s: models run on the CPU", name)
        for given in (own, *(options or ())[number : number + 1]):
            for option in given:
                LOG.debug("the option %s of %s means nothing here", option, name)


def _paired(what: str, names: Sequence[str], values: Sequence[T]) -> dict[str, T]:
    if len(names) != len(values):
        raise SettingsError(f"there are {len(names)} names for {len(values)} {what}")
    return dict(zip(names, values, strict=True))
