"""Options and providers of sessions and runs, with the names that onnxruntime has for them.

What has no meaning here is accepted and logged at debug level, so that programs which set it go on.
What would change results and cannot be done is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from tunefarm.compiler.errors import SettingsError

CPU: Final = "CPUExecutionProvider"
LOG: Final = logging.getLogger("tunefarm.session")


class GraphOptimizationLevel(IntEnum):
    """How much onnxruntime rewrites a graph; of no meaning here."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Whether onnxruntime runs nodes in parallel; kernels here run one after another."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """In which order onnxruntime runs nodes; of no meaning here."""

    DEFAULT = 0
    PRIORITY_BASED = 1


class _Entries:
    """Configuration entries by name, kept and not read."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def _add(self, key: str, value: str) -> None:
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
    `add_free_dimension_override_by_name` gives a symbol of an ONNX file its size. With
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
        "graph_optimization_level",
        "inter_op_num_threads",
        "intra_op_num_threads",
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "optimized_model_filepath",
        "profile_file_prefix",
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
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.logid = ""
        self.symbol_sizes: dict[str, int] = {}
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
        """Raise `SettingsError`: constants are packed when a model is built."""
        raise SettingsError(
            f"the initializer {name!r} cannot be replaced",
            hint="save the model with the array that it should have",
        )

    def add_external_initializers(self, names: Sequence[str], values: Sequence[object]) -> None:
        """Raise `SettingsError` as `add_initializer` does."""
        for name, value in zip(names, values, strict=False):
            self.add_initializer(name, value)

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

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep a configuration entry, which means nothing here."""
        self._add(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """An entry that was added; raises `SettingsError` for any other."""
        return self._get(key)


def threads_of(options: object) -> int | None:
    """The threads that options of a session ask for, None if they leave that open.

    Raises `SettingsError` for a number that cannot be.
    """
    if getattr(options, "inter_op_num_threads", 0):
        LOG.debug("inter_op_num_threads means nothing here: kernels run one after another")
    threads = int(getattr(options, "intra_op_num_threads", 0))
    if threads < 0:
        raise SettingsError(f"intra_op_num_threads is {threads}: it must be 0 or more")
    return threads or None


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
