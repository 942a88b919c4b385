"""Loops among the steps of an executable: stored, profiled, in a C library, and verified."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.frontend.loop_models import CASES, LoopCase
from tunefarm import compiler
from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.runtime.entry.entry import entry_of
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.executable_spec import AgainStep, LoopStep
from tunefarm.compiler.runtime.spec.verify_spec import verify_spec


def built(name: str) -> tuple[Executable, LoopCase]:
    case = CASES[name]
    return compiler.build(import_model_proto(case.proto)), case


@pytest.mark.parametrize("name", ["a loop in a loop", "a loop in a branch", "two hundred rows"])
def test_profiles_of_loops_give_what_a_run_gives(name: str) -> None:
    executable, case = built(name)
    for inputs in case.calls:
        whole = executable.run(inputs)
        profile = executable.profile(inputs, repeat=1)
        assert len(profile.steps) == len(executable.spec.steps)
        outputs = dict(profile.outputs)
        for port, array in whole.items():
            np.testing.assert_array_equal(outputs[port], array)


def test_loops_are_kept_in_an_artefact(tmp_path: Path) -> None:
    executable, case = built("a loop in a loop")
    executable.save(tmp_path / "model.tuned")
    again = compiler.load(tmp_path / "model.tuned")
    assert again.spec.steps == executable.spec.steps
    for inputs in case.calls:
        for port, array in executable.run(inputs).items():
            np.testing.assert_array_equal(again.run(inputs)[port], array)


def test_the_entry_is_as_long_for_many_steps_as_for_few() -> None:
    case = CASES["two hundred rows"]
    fewer = replace(case, text=case.text.replace("200", "101"))
    few, many = (compiler.build(import_model_proto(item.proto)).spec for item in (fewer, case))
    assert [part.symbol for part in few.objects] != []
    assert len(few.steps) == len(many.steps)
    assert len(entry_of(few).splitlines()) == len(entry_of(many).splitlines())


def test_a_loop_must_end_and_have_memory_for_its_rows() -> None:
    spec = built("two hundred rows")[0].spec
    with pytest.raises(VerifyError, match="no end"):
        verify_spec(
            replace(spec, steps=tuple(s for s in spec.steps if not isinstance(s, AgainStep)))
        )
    with pytest.raises(VerifyError, match="no such loop has begun"):
        verify_spec(
            replace(spec, steps=tuple(s for s in spec.steps if not isinstance(s, LoopStep)))
        )
    longer = tuple(
        replace(step, most=201) if isinstance(step, LoopStep) else step for step in spec.steps
    )
    with pytest.raises(VerifyError, match="no 201 rows"):
        verify_spec(replace(spec, steps=longer))
