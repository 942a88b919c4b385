"""tunefarm: tunes ONNX models for the CPUs that they run on, builds them and runs them.

    import tunefarm

    tunefarm.tune("resnet18.onnx", db="tuning.db", trials=500)
    tunefarm.build("resnet18.onnx", db="tuning.db").save("resnet18.tuned")
    outputs = tunefarm.load("resnet18.tuned").run({"x": array})
    session = tunefarm.InferenceSession("resnet18.onnx")
    tokens = tunefarm.generate("decoder.tuned", [1, 15, 7])

What programs import from onnxruntime is here by the same names: `import tunefarm as onnxruntime`.
`replace_onnxruntime` gives them to programs whose libraries import onnxruntime themselves.

`load` and `InferenceSession` of a built model need NumPy and llvmlite only. What a name needs is
imported when it is first asked for.

In the repository this is tuner/facade.py; installed it is tunefarm/__init__.py.
"""

from __future__ import annotations

import sys
from importlib import import_module  # noqa: TID251 - imported when it is asked for
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tunefarm.compiler import (
        CFunction,
        ExecutionMode,
        ExecutionOrder,
        Generator,
        GraphOptimizationLevel,
        IOBinding,
        ModelMetadata,
        NodeArg,
        OrtValue,
        RunOptions,
        SessionOptions,
        disable_telemetry_events,
        enable_telemetry_events,
        generate,
        get_all_providers,
        get_available_providers,
        get_build_info,
        get_device,
        get_version_string,
        load,
        preload_dlls,
        register_function,
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_seed,
        unregister_function,
    )
    from tunefarm.tuner import InferenceSession, UntunedWarning, build, choose, tune

__all__ = [
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
    "UntunedWarning",
    "__version__",
    "build",
    "choose",
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
    "replace_onnxruntime",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
    "tune",
    "unregister_function",
]
_TUNER = ("InferenceSession", "UntunedWarning", "build", "choose", "tune")
"""Those of `tunefarm.tuner`; the others are of `tunefarm.compiler`."""
_PACKAGES = ("capi", "compiler", "configs", "db", "measure", "tuner")


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f"tunefarm.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'tunefarm' has no attribute {name!r}")
    from tunefarm.configs.memory_room import require_libraries

    require_libraries()
    if name in _TUNER:
        return getattr(_tuner_or_runtime(name), name)
    return getattr(import_module("tunefarm.compiler"), name)


def replace_onnxruntime() -> None:
    """Make `import onnxruntime` give tunefarm's sessions, in this process and from now on.

    Where onnxruntime is installed, its own modules get the names of tunefarm's sessions and errors,
    and all else that they have stays: `__version__`, `onnxruntime.quantization`. Otherwise a module
    stands for it that has the names of tunefarm and the version whose interface they follow.
    """
    if "onnxruntime" not in sys.modules and find_spec("onnxruntime") is None:
        _stand_for_onnxruntime()
        return
    from tunefarm import capi
    from tunefarm.compiler import session

    of_sessions = {name: getattr(sys.modules[__name__], name) for name in session.__all__}
    of_errors = {name: getattr(capi, name) for name in capi.__all__}
    for name, replaced in (
        ("onnxruntime", of_sessions),
        ("onnxruntime.capi.onnxruntime_inference_collection", of_sessions),
        ("onnxruntime.capi.onnxruntime_pybind11_state", of_errors),
        ("onnxruntime.capi._pybind_state", of_errors),
    ):
        module = import_module(name)
        for key in replaced.keys() & vars(module).keys():
            setattr(module, key, replaced[key])


def _stand_for_onnxruntime() -> None:
    from tunefarm import capi
    from tunefarm.compiler.session import get_version_string

    module = ModuleType("onnxruntime", __doc__)
    module.__spec__ = ModuleSpec("onnxruntime", None, is_package=True)
    module.__path__ = []  # its modules are those below
    own = {"__version__": get_version_string(), "__getattr__": __getattr__, "__dir__": __dir__}
    vars(module).update(own, capi=capi, replace_onnxruntime=replace_onnxruntime)
    sys.modules["onnxruntime"] = module
    for name in ("_pybind_state", "onnxruntime_pybind11_state"):
        sys.modules[f"onnxruntime.capi.{name}"] = capi
    sys.modules["onnxruntime.capi"] = capi
    sys.modules["onnxruntime.capi.onnxruntime_inference_collection"] = module


def _tuner_or_runtime(name: str) -> ModuleType:
    """The module that has `name`: where only what runs models is installed, `build` and sessions
    are the compiler's."""
    if find_spec("pydantic") is not None:  # all that tunes reads settings
        return import_module("tunefarm.tuner")
    runtime = import_module("tunefarm.compiler")
    if name not in runtime.__all__:
        raise ImportError(
            f"tunefarm.{name} needs libraries that are not installed: pip install tunefarm"
        )
    return runtime


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
