"""The compiler: ONNX model -> fused kernels -> loops -> machine code -> Executable.

    exe = tunefarm.compiler.build("resnet18.onnx")        # default schedules
    exe.save("resnet18.tuned")
    exe = tunefarm.load("resnet18.tuned")
    outputs = exe.run({"x": array})

`InferenceSession` runs a model as onnxruntime's does, see
`tunefarm.compiler.session.inference_session`.
`register_function` binds operators that the compiler does not have to Python or C, see
`tunefarm.compiler.foreign_functions`. `load` needs NumPy and llvmlite only; what `build` needs is
imported when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING

from tunefarm.compiler.version import VERSION

if TYPE_CHECKING:
    from tunefarm.compiler.foreign_functions import (
        CFunction,
        register_function,
        unregister_function,
    )
    from tunefarm.compiler.generation import Generator, generate
    from tunefarm.compiler.graph.ir import Graph
    from tunefarm.compiler.kernels.kernel import FusedKernel
    from tunefarm.compiler.runtime.execution.executable import Executable
    from tunefarm.compiler.schedule.schedule import ScheduleChoice
    from tunefarm.compiler.session import (
        ExecutionMode,
        ExecutionOrder,
        GraphOptimizationLevel,
        InferenceSession,
        IOBinding,
        ModelMetadata,
        NodeArg,
        OrtValue,
        RunOptions,
        SessionOptions,
        disable_telemetry_events,
        enable_telemetry_events,
        get_all_providers,
        get_available_providers,
        get_build_info,
        get_device,
        get_version_string,
        preload_dlls,
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_seed,
    )
    from tunefarm.compiler.stages import DumpAfter
    from tunefarm.compiler.target import Target
    from tunefarm.compiler.types.extents import Shapes
    from tunefarm.compiler.types.numerics import Denormals, Numerics


def build(
    model: str | PathLike[str] | Graph,
    choose_schedule: Callable[[FusedKernel], ScheduleChoice | None] | None = None,
    *,
    target: Target | None = None,
    threads: int = 1,
    shapes: Shapes | None = None,
    inputs: Mapping[str, object] | None = None,
    dump_after: DumpAfter = None,
    precision: Numerics | str | None = None,
    denormals: Denormals | None = None,
    numerics: Numerics | str | None = None,
) -> Executable:
    """Compile a model and load it.

    `precision` is "default", "strict", "deterministic", "int8-activations", "bf16" or "fp16"
    (`numerics` is its former name), `inputs` are the values of inputs that are fixed; the other
    arguments are those of `tunefarm.compiler.pipeline.compile_model`.

    Raises `TunefarmError` as that does, and where both `precision` and `numerics` are given;
    `ImportModelError` where only what runs models is installed.
    """
    from tunefarm.compiler.pipeline import compile_model
    from tunefarm.compiler.runtime.execution.executable import Executable
    from tunefarm.compiler.types.extents import with_fixed
    from tunefarm.compiler.types.numerics import one_precision

    compiled = compile_model(
        model,
        choose_schedule,
        target=target,
        threads=threads,
        shapes=with_fixed(shapes, inputs),
        dump_after=dump_after,
        numerics=one_precision(precision, numerics) or "default",
        denormals=denormals,
    )
    return Executable(compiled.spec)


def load(
    path: str | PathLike[str], threads: int | None = None, *, fallback: bool = False
) -> Executable:
    """Load a built model, see `tunefarm.compiler.runtime.execution.executable.load`."""
    from tunefarm.compiler.runtime.execution.executable import load as load_artefact

    return load_artefact(path, threads, fallback=fallback)


def __getattr__(name: str) -> object:
    """Names whose modules need NumPy: imported when asked for."""
    if name in _FUNCTIONS:
        import tunefarm.compiler.foreign_functions as functions

        return getattr(functions, name)
    if name in _GENERATION:
        import tunefarm.compiler.generation as generation

        return getattr(generation, name)
    if name in __all__:
        import tunefarm.compiler.session as sessions

        return getattr(sessions, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_FUNCTIONS = ("CFunction", "register_function", "unregister_function")
_GENERATION = ("Generator", "generate")

__all__ = [
    "VERSION",
    "CFunction",
    "ExecutionMode",
    "ExecutionOrder",
    "Generator",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "build",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "generate",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "load",
    "preload_dlls",
    "register_function",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
    "unregister_function",
]
