"""Other engines at several sizes: wrong ones are told from right ones, and read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest

from tunefarm import compiler
from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.frontend.zoo.network import Size
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.tuner.commands import bench as module
from tunefarm.tuner.commands.bench import bench_sizes, sizes_table, times_of
from tunefarm.tuner.commands.engines import Asked, Engine
from tunefarm.tuner.confirm.latency import LatencyOptions
from tunefarm.tuner.confirm.model_times import with_steps

QUICK = LatencyOptions(rounds=3, min_sample_seconds=1e-4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    size = Size(width=0.0625, tokens=13, layers=1, dynamic=True)
    path = str(tmp_path_factory.mktemp("sizes") / "encoder.onnx")
    onnx.save(build_model("encoder", size=size), path)
    return path


BUILT: dict[bytes, Executable] = {}


def build_of(model: str) -> Executable:
    """The build of a file; of equal files it is made once."""
    content = Path(model).read_bytes()
    if content not in BUILT:
        BUILT[content] = compiler.build(model, shapes={"batch": (1,), "sequence": ("1..24",)})
    return BUILT[content]


@pytest.fixture
def ours(model: str) -> Executable:
    return build_of(model)


def wrong_below_3(asked: Asked) -> list[Engine]:
    """An engine that is right at the greater sizes only; it is given the model with sizes open."""
    assert set(asked.shapes.values()) == {(1, -1, 64)}, asked.shapes
    right = build_of(asked.model).run

    def run(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        (x,) = inputs.values()
        return {name: y + (x.shape[1] < 3) for name, y in right(inputs).items()}

    return [Engine("other", "f32", run)]


def test_an_engine_with_wrong_outputs_counts_where_it_is_right(
    model: str, ours: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENGINES", {"other": wrong_below_3})
    result = bench_sizes(model, ours, ["other"], QUICK)
    assert [at.sizes for at in result.sizes] == [f"sequence={n}" for n in (1, 3, 8, 24)]
    assert [at.wrong for at in result.sizes] == [("other",), (), (), ()]
    assert result.means["other"] > 0 and result.reference == "tunefarm"
    assert result.to_json()["sizes"][-1]["symbols"] == {"sequence": 24}
    table = sizes_table(result)
    (cells,) = [column._cells for column in table.columns if column.header == "other"]
    assert str(cells[0]).startswith("wrong, error") and "x" in str(cells[1])
    json.dumps(result.to_json(), allow_nan=False)


def settling(asked: Asked) -> list[Engine]:
    """An engine that is wrong for good if the first run has one token, as OpenVINO is."""
    right = build_of(asked.model).run
    lengths: list[int] = []

    def run(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        (x,) = inputs.values()
        lengths.append(x.shape[1])
        return {name: y + (lengths[0] == 1) for name, y in right(inputs).items()}

    return [Engine("other", "f32", run)]


def test_an_engine_settles_at_the_greatest_sizes(
    model: str, ours: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENGINES", {"other": settling})
    result = bench_sizes(model, ours, ["other"], QUICK)
    assert [at.wrong for at in result.sizes] == [()] * 4


def test_wrong_outputs_of_ours_are_refused(
    model: str, ours: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(asked: Asked) -> list[Engine]:
        return [Engine("onnxruntime", "f32", each.run) for each in wrong_below_3(asked)]

    monkeypatch.setattr(module, "ENGINES", {"other": other})
    with pytest.raises(MeasureError, match=r"our outputs differ from .* onnxruntime at sequence=1"):
        bench_sizes(model, ours, ["other"], QUICK)


def test_our_time_is_kept_with_the_sizes_that_it_was_measured_at(
    model: str, ours: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENGINES", {"other": wrong_below_3})
    result = bench_sizes(model, ours, ["other"], QUICK)
    times = with_steps(times_of(result), ours.spec, ours, 1.0)
    assert (times.tuned, times.sizes) == (result.sizes[-1].engines[0].seconds, {"sequence": 24})
