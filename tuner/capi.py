"""What programs import from `onnxruntime.capi`: its exceptions, as errors of tunefarm.

    import tunefarm as onnxruntime

    try:
        session.run(None, inputs)
    except onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument: ...

The two modules that it has there are this one, also for a program that imports them by name where
tunefarm stands for onnxruntime in `sys.modules`. Other names are those of sessions.

In the repository this is tuner/capi.py; installed it is tunefarm/capi.py.
"""

from __future__ import annotations

import sys

from tunefarm.compiler import session
from tunefarm.compiler.errors import (
    InputError,
    ModelError,
    TunefarmError,
    UnsupportedOperatorError,
)

__all__ = [
    "EPFail",
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "NoModel",
    "NoSuchFile",
    "NotFound",
    "NotImplemented",
    "RuntimeException",
]

Fail = EPFail = RuntimeException = TunefarmError
InvalidArgument = InputError
InvalidGraph = InvalidProtobuf = NoModel = NoSuchFile = NotFound = ModelError
NotImplemented = UnsupportedOperatorError

_pybind_state = onnxruntime_pybind11_state = sys.modules[__name__]
for _name in ("_pybind_state", "onnxruntime_pybind11_state"):
    sys.modules[f"{__name__}.{_name}"] = _pybind_state


def __getattr__(name: str) -> object:
    if name not in session.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(session, name)
