"""Options and providers of a session: those that it has, and errors for those that it has not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tunefarm.compiler.errors import SettingsError

CPU: Final = "CPUExecutionProvider"

_REFUSED: Final = {
    "enable_profiling": "session.executable.profile times every kernel",
    "optimized_model_filepath": "tune build --emit graph writes the graph",
}


@dataclass(slots=True)
class SessionOptions:
    """Options of a session; those of onnxruntime itself may be given in their place.

    `intra_op_num_threads`: threads of a run; 0: those that an artefact was built for, and one for
    an ONNX file. Kernels run one after another, so `inter_op_num_threads` must be 0 or 1. The rest
    says nothing here, and is there so that code which sets it goes on.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    enable_profiling: bool = False
    optimized_model_filepath: str = ""
    graph_optimization_level: object = None
    execution_mode: object = None
    execution_order: object = None
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    use_deterministic_compute: bool = True
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""


def threads_of(options: object) -> int | None:
    """The threads that options of a session ask for, None if they leave that open.

    Raises `SettingsError` for options that cannot be.
    """
    for name, instead in _REFUSED.items():
        if getattr(options, name, None):
            raise SettingsError(f"a session has no {name}", hint=instead)
    if int(getattr(options, "inter_op_num_threads", 0)) > 1:
        raise SettingsError(
            "inter_op_num_threads is more than 1, but kernels run one after another",
            hint="intra_op_num_threads says how many threads share each",
        )
    threads = int(getattr(options, "intra_op_num_threads", 0))
    if threads < 0:
        raise SettingsError(f"intra_op_num_threads is {threads}: it must be 0 or more")
    return threads or None


def check_run_options(options: object) -> None:
    """Raise `SettingsError` for what a run cannot do."""
    if getattr(options, "terminate", False):
        raise SettingsError("a run cannot be ended by its options: terminate must be false")


def check_providers(
    providers: Sequence[object] | None, options: Sequence[Mapping[str, Any]] | None
) -> None:
    """Raise `SettingsError` unless the CPU's provider is among these, without options of its own.

    As with onnxruntime others may be named beside it: what is not there is passed over.
    """
    names: list[str] = []
    given: list[Mapping[str, Any]] = []
    for provider in providers or (CPU,):
        name, own = provider if isinstance(provider, tuple) else (provider, {})
        names.append(str(name))
        given.append(own)
    if CPU not in names:
        raise SettingsError(
            f"there is no provider {names[0]}: models run on the CPU",
            hint=f"leave providers out, or add {CPU}",
        )
    position = names.index(CPU)
    for own in (given[position], *(options or ())[position : position + 1]):
        if own:
            raise SettingsError(f"{CPU} has no option {next(iter(own))}")
