"""A profile as a trace file of the form that onnxruntime writes."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.runtime.execution.profile import Profile

_MICROSECONDS = 1e6


def write_trace(profile: Profile, prefix: str) -> str:
    """Write one run of the model, step by step, to `PREFIX_TIME.json`; the name.

    Raises `SettingsError` where that cannot be written.
    """
    steps = [(step.title, step.seconds * _MICROSECONDS, step.name) for step in profile.steps]
    begin = 0.0
    events = [_event("Session", "model_run", 0.0, sum(step[1] for step in steps), {})]
    for title, duration, kernel in steps:
        events.append(_event("Node", f"{title}_kernel_time", begin, duration, {"op_name": kernel}))
        begin += duration
    name = f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
    try:
        with open(name, "w", encoding="utf-8") as file:
            json.dump(events, file, indent=0)
    except OSError as error:
        raise SettingsError(
            f"cannot write {name}: {error.strerror or error}",
            hint="profile_file_prefix of the session's options names another folder",
        ) from error
    return name


def _event(kind: str, name: str, begin: float, duration: float, more: dict[str, Any]) -> object:
    return {
        "cat": kind,
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "dur": duration,
        "ts": begin,
        "ph": "X",
        "name": name,
        "args": more,
    }
