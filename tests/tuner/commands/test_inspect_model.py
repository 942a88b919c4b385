"""What `tune inspect` prints is what the stages of the compiler made."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.pipeline import STAGES, kernels_of
from tunefarm.compiler.schedule import spaces
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.space import Sketch
from tunefarm.compiler.schedule.steps.loop_kinds import Vectorize
from tunefarm.configs.settings import Settings, load_settings
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.commands.inspect_model import inspect_model


@pytest.fixture
def settings() -> Settings:
    return load_settings(environment={})


def test_kernel_that_no_schedule_fits_is_shown_as_it_is_built(
    model: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    misfit = Schedule((Vectorize("no_such_stage", "no_such_axis"),))
    sketch = Sketch("misfit", (), lambda _: misfit, ())
    monkeypatch.setattr(spaces, "MOVING", (lambda *_: [sketch],))
    kernels = [calls[0] for calls in kernels_of(model).kernel_calls().values()]
    (softmax,) = (call for call in kernels if "softmax" in call.operators)
    shown = inspect_model(model, "loops", settings, kernel=softmax.key)
    assert shown.split("\n", 1)[1] == format_loops(lower(softmax.kernel, spaces.naive_schedule()))
    assert "define void @kernel(" in inspect_model(model, "llvm", settings, kernel="softmax")


def test_dumps_are_limited_to_the_kernel_and_leave_the_text_alone(
    model: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = inspect_model(model, "space", settings, kernel="softmax")
    assert capsys.readouterr() == ("", "")
    assert inspect_model(model, "space", settings, kernel="softmax", dump_after="all") == shown
    out, err = capsys.readouterr()
    headers = [line for line in err.splitlines() if line.startswith("after ")]
    assert out == "" and tuple(header.split()[1].rstrip(":") for header in headers) == STAGES
    whole = inspect_model(model, "graph", settings, dump_after="loops")
    loops = capsys.readouterr().err
    assert loops.count("after loops of ") == len(kernels_of(model).kernel_calls())
    assert whole == inspect_model(model, "graph", settings)


def test_a_kernel_is_found_by_its_node_and_shown_with_it(model: Path, settings: Settings) -> None:
    proto = onnx.load(model)
    for number, node in enumerate(proto.graph.node):
        node.name = f"node {number}"
    onnx.save(proto, model)
    for key, (call, *_) in kernels_of(model).kernel_calls().items():
        shown = inspect_model(model, "space", settings, kernel=call.sources[0])
        assert shown == inspect_model(model, "space", settings, kernel=key)
        assert shown.startswith(f"# {call.kernel.name} <{key}>, 1 times: {call.sources[0]}")


def test_unknown_stages_come_with_the_nearest_before_the_model_is_read(settings: Settings) -> None:
    with pytest.raises(SettingsError, match="did you mean loops"):
        inspect_model("missing.onnx", "loop", settings)
    with pytest.raises(SettingsError, match="did you mean 'object_code'"):
        inspect_model("missing.onnx", "loops", settings, dump_after="object")


def test_a_warning_is_a_line_on_stderr(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = onnx.load(model)
    (output,) = proto.graph.output
    output.type.tensor_type.shape.dim[-1].dim_value += 1
    onnx.save(proto, model)
    assert run_command(app, ["inspect", "--model", str(model), "--stage", "graph"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("note: the file of the model ")
    assert line.endswith(": the computed shapes count")
