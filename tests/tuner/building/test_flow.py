"""Builds of the same kernels with the same schedules are found again; all else is compiled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tests.tuner.fleet import record_kernel, trial_of
from tunefarm import tuner
from tunefarm.compiler.errors import SettingsError, TunefarmError
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall
from tunefarm.compiler.pipeline import compile_model, kernels_of
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.configs.settings import DatabaseSettings, Settings, load_settings
from tunefarm.db import model_queries
from tunefarm.db.store import Store
from tunefarm.tuner.building import cache
from tunefarm.tuner.building.cache import BuildCache
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.record import record_build
from tunefarm.tuner.building.request import BuildRequest, BuildResult


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(None, {"cache.folder": str(tmp_path / "cache")}, environment={})


class Compiler:
    """Builds that are not found by their bytes, and how often the compiler was asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs = 0
        self._folder = folder

        def counted(*arguments: Any, **options: Any) -> Any:
            self.runs += 1
            return compile_model(*arguments, **options)

        monkeypatch.setattr("tunefarm.tuner.building.lowered.compile_model", counted)
        monkeypatch.setattr(BuildCache, "repeated", lambda _: None)

    def build(
        self, model: Path, settings: Settings, store: Store | None = None, **options: Any
    ) -> tuple[bytes, BuildResult]:
        output = self._folder / "built.tuned"
        if store is not None:
            settings = settings.model_copy(update={"database": DatabaseSettings(url=store.name)})
        result = build(
            BuildRequest(str(model), str(output), settings, untuned=store is None, **options)
        )
        return output.read_bytes(), result


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    return Compiler(tmp_path, monkeypatch)


def test_the_same_build_again_takes_no_compiler(
    compiler: Compiler, model: Path, settings: Settings
) -> None:
    first, reported = compiler.build(model, settings)
    again, reported_again = compiler.build(model, settings)
    assert compiler.runs == 1
    assert again == first
    assert reported_again == reported
    assert reported.model_hash and reported.digest


def test_what_is_dumped_is_made_anew_where_the_build_is_kept(
    compiler: Compiler, model: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    first = compiler.build(model, settings)[0]
    assert capsys.readouterr().err == ""
    dumped, result = compiler.build(model, settings, dump_after="llvm")
    assert dumped == first
    assert capsys.readouterr().err.count("define void @kernel_") == len(result.report.kernels)


def test_an_unknown_stage_to_dump_is_refused_with_the_nearest(settings: Settings) -> None:
    with pytest.raises(SettingsError, match="did you mean 'plan_memory'"):
        BuildRequest("m.onnx", "m.tuned", settings, dump_after="planmemory")


def test_what_was_built_before_is_what_a_build_without_cache_gives(
    compiler: Compiler, model: Path, settings: Settings
) -> None:
    off = load_settings(None, {"cache.enabled": False}, environment={})
    compiler.build(model, settings)
    cached, _ = compiler.build(model, settings)
    assert compiler.build(model, off)[0] == cached
    assert compiler.runs == 2


@pytest.mark.parametrize(
    "change",
    [{"compile.threads": 2}, {"compile.numerics": "strict"}, {"compile.target": "x86-64-v2"}],
)
def test_other_settings_are_another_build(
    compiler: Compiler, model: Path, settings: Settings, change: dict[str, object]
) -> None:
    compiler.build(model, settings)
    folder = {"cache.folder": settings.cache.folder}
    compiler.build(model, load_settings(None, {**folder, **change}, environment={}))
    assert compiler.runs == 2


def test_a_changed_model_is_another_build(
    compiler: Compiler, model: Path, settings: Settings
) -> None:
    compiler.build(model, settings)
    changed = tiny_model()
    changed.graph.name = "other"
    onnx.save(changed, model)
    compiler.build(model, settings)
    assert compiler.runs == 2


def test_external_data_is_part_of_the_model(
    compiler: Compiler, model: Path, settings: Settings
) -> None:
    onnx.save(
        tiny_model(), model, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    first, _ = compiler.build(model, settings)
    assert compiler.build(model, settings)[0] == first
    assert compiler.runs == 1
    data = model.with_name("weights.bin")
    data.write_bytes(bytes(data.stat().st_size))
    assert compiler.build(model, settings)[0] != first
    assert compiler.runs == 2


def test_a_model_that_may_refer_to_other_files_is_not_kept(
    compiler: Compiler, model: Path, settings: Settings
) -> None:
    with model.open("ab") as file:  # a field that ONNX does not know: the entry's value comes first
        file.write(b"\xfa\x3f\x0d\x12\x01a\n\x08location")
    compiler.build(model, settings)
    compiler.build(model, settings)
    assert compiler.runs == 2


def test_a_damaged_entry_is_made_anew(
    compiler: Compiler, model: Path, settings: Settings, tmp_path: Path
) -> None:
    first, _ = compiler.build(model, settings)
    largest = max((tmp_path / "cache").glob("*/*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[-1] ^= 1
    largest.write_bytes(content)
    assert compiler.build(model, settings)[0] == first
    assert compiler.runs == 2
    compiler.build(model, settings)
    assert compiler.runs == 2


def test_entries_of_other_programs_are_not_read(
    compiler: Compiler, model: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.build(model, settings)
    monkeypatch.setattr(cache, "program", lambda: ("changed",))
    compiler.build(model, settings)
    assert compiler.runs == 2


def test_what_happens_to_an_output_happens_to_nothing_else(
    compiler: Compiler, model: Path, settings: Settings, tmp_path: Path
) -> None:
    first, _ = compiler.build(model, settings)
    os.rename(tmp_path / "built.tuned", tmp_path / "another.tuned")
    compiler.build(model, settings)
    other = tiny_model()
    other.graph.name = "other"
    onnx.save(other, tmp_path / "other.onnx")
    other_file, output = str(tmp_path / "other.onnx"), str(tmp_path / "other.tuned")
    build(BuildRequest(other_file, output, settings, untuned=True))
    (tmp_path / "built.tuned").write_bytes((tmp_path / "other.tuned").read_bytes())  # in place
    assert (tmp_path / "another.tuned").read_bytes() == first
    assert compiler.build(model, settings)[0] == first


def remember(store: Store, kernel: FusedKernel, number: int) -> None:
    """A record of the kernel with the candidate of that number, faster than those before."""
    target = host_target()
    space = schedule_space(kernel, target)
    key, candidate = record_kernel(store, kernel, target), space.candidate(number % space.size)
    named = f"request-{number}"
    trial = trial_of(key, space, candidate, 1e-3 / (number + 1), request_id=named)
    assert store.add([trial]) == 1


def test_a_new_record_is_applied(
    compiler: Compiler, model: Path, settings: Settings, store: Store
) -> None:
    kernels = [call.kernel for call in kernels_of(model).calls if isinstance(call, KernelCall)]
    kernel = kernels[0]
    before, _ = compiler.build(model, settings, store)
    remember(store, kernel, 1)
    one, reported = compiler.build(model, settings, store)
    assert one != before
    (use,) = [use for use in reported.report.kernels if use.report.schedule_source == "tuned"]
    assert use.report.record_id == "1"
    remember(store, kernel, 2)
    _, reported = compiler.build(model, settings, store)
    assert "2" in {use.report.record_id for use in reported.report.kernels}
    assert compiler.runs == 3


def test_required_share_counts_for_what_was_built_before_too(
    compiler: Compiler, model: Path, settings: Settings, store: Store, tmp_path: Path
) -> None:
    compiler.build(model, settings, store)
    (tmp_path / "built.tuned").unlink()
    with pytest.raises(TunefarmError, match=r"is tuned, 50\.0 % is required"):
        compiler.build(model, settings, store, require_tuned=0.5)
    assert not (tmp_path / "built.tuned").exists()
    assert compiler.runs == 1


def test_builds_are_recorded_in_their_database(
    compiler: Compiler, model: Path, settings: Settings, store: Store
) -> None:
    _, result = compiler.build(model, settings, store)
    assert result.not_listed == ""
    (record,) = model_queries.builds(store)
    assert (record.model_name, record.artefact_sha256) == ("tiny", result.digest)
    assert record.report["kernels"][0]["numerics"] == "direct"
    missing = load_settings(None, {"database.url": f"{store.name}.gone"}, environment={})
    request = BuildRequest(str(model), result.output, missing)
    assert record_build(request, host_target(), result).startswith(
        "the build is not recorded: no such"
    )


def test_a_dump_takes_nothing_from_caches(
    compiler: Compiler, model: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = compiler.build(model, settings)
    again, _ = compiler.build(model, settings, dump_after="run_steps")
    assert compiler.runs == 2 and again == first
    assert "run_steps" in capsys.readouterr().err


def test_a_model_is_built_into_memory_by_the_same_flow(
    compiler: Compiler,
    model: Path,
    settings: Settings,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("TUNEFARM_CACHE__FOLDER", str(settings.cache.folder))
    compiler.build(model, settings, store)
    for _ in range(2):
        with pytest.warns(tuner.UntunedWarning):
            executable = tuner.build(model, db=store.name)
        (output,) = executable.run({"x": np.ones((1, 3, 12, 12), np.float32)}).values()
        assert np.isfinite(output).all()
    assert compiler.runs == 1
    assert len(model_queries.builds(store)) == 1 and list(folder.iterdir()) == []
    with pytest.raises(TunefarmError, match=r"is tuned, 50\.0 % is required"):
        tuner.build(model, db=store.name, require_tuned=0.5)
    with pytest.raises(SettingsError, match="must be between 0 and 1"):
        tuner.build(model, db=store.name, require_tuned=2.0)
