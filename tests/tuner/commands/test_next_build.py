from __future__ import annotations

import itertools
import shlex

from tunefarm.configs.settings import load_settings
from tunefarm.tuner.commands.next_build import next_build


def build_after(*functions: str, **overrides: object) -> list[str]:
    """What is said to be typed next, in words."""
    settings = load_settings(None, overrides, environment={})
    return shlex.split(next_build("mlp.onnx", settings, None, {"x": (3, 4)}, "log.db", functions))


def values_of(option: str, typed: list[str]) -> list[str]:
    return [value for name, value in itertools.pairwise(typed) if name == option]


def test_functions_of_a_job_are_loaded_by_its_build_too() -> None:
    assert values_of("--functions", build_after("my ops.py", "own.ops")) == ["my ops.py", "own.ops"]
    assert "--functions" not in build_after()


def test_what_decides_about_code_is_typed_again() -> None:
    typed = build_after(
        **{"compile.threads": 2, "search.plan": "rules", "compile.denormals": "keep"}
    )
    assert values_of("--threads", typed) == ["2"]
    assert values_of("--plan", typed) == ["rules"]
    assert values_of("--denormals", typed) == ["keep"]
    assert values_of("--shape", typed) == ["x=3,4"]
