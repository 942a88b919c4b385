"""A measured table of a machine: written by the doctor, read by `--machine`, kept by its digest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tunefarm.compiler import load
from tunefarm.compiler.target import host_target
from tunefarm.configs import settings as settings_module
from tunefarm.configs.errors import SettingsError
from tunefarm.configs.settings import Machine, MachineFile, load_machine, load_settings
from tunefarm.measure.worker import calibrate
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.from_settings import target_of

SHIPPED = host_target().machine
MEASURED = SHIPPED.model_copy(
    update={
        "source": 'measured on "this" CPU',
        "memory": SHIPPED.memory.model_copy(update={"read": 0.37}),
    }
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the doctor has written, in the folder where everything happens."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibrate, "calibrate", lambda target: MEASURED)
    assert run_command(app, ["doctor", "--calibrate", "--output", "mine.toml"]) == 0
    return tmp_path / "mine.toml"


def test_what_the_doctor_writes_is_what_is_read(file: Path) -> None:
    assert load_machine(str(file)) == MachineFile(
        version=1, target=host_target().key, machine=MEASURED
    )


def test_without_a_file_the_doctor_prints_the_table(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run_command(app, ["doctor", "--calibrate"]) == 0
    assert capsys.readouterr().out == file.read_text()
    assert run_command(app, ["doctor", "--calibrate", "--json", "-"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert said["digest"] == MEASURED.digest and Machine(**said["machine"]) == MEASURED
    assert run_command(app, ["doctor", "--output", "other.toml"]) != 0
    assert "--output is the file of --calibrate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1", "version = 2", "version = 2: input should be 1"),
        ("read = 0.37", "read = -0.37", "machine.memory.read = -0.37: input should be greater"),
        ("read = 0.37", "read = nan", "machine.memory.read = nan: input should be a finite"),
        ("read = 0.37", 'read = "fast"', "machine.memory.read = 'fast': input should be a valid"),
        ("read = 0.37, ", "", "machine.memory.read is missing"),
        ("streams = ", "steams = ", "unknown key machine.memory.steams"),
        ("[machine]", "[[machine]", "is not valid TOML"),
    ],
)
def test_a_file_with_a_mistake_is_one_line_that_says_what_to_do(
    file: Path, old: str, new: str, message: str
) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(SettingsError) as caught:
        load_machine(str(file))
    line = str(caught.value)
    assert message in line and "\n" not in line
    assert (
        "tune doctor --calibrate --output" in line or "did you mean machine.memory.streams" in line
    )


def test_settings_give_the_target_the_measured_table_and_the_shipped_one_again(file: Path) -> None:
    key = host_target().key
    target = target_of(load_settings(None, {"compile.machine": str(file)}, environment={}))
    assert target.machine == MEASURED and target.key == key
    assert target_of(load_settings(None, environment={})).machine == SHIPPED


def test_a_target_described_in_a_file_may_bring_its_table(file: Path) -> None:
    source = Path(settings_module.__file__).parent / "targets/x86-64-v3.toml"
    text = source.read_text()
    described, _ = text.split("[machine]")
    for name, content in {
        "with": text.replace("read = 12.0", "read = 1.5"),
        "bare": described,
    }.items():
        Path(f"{name}.toml").write_text(content)
    of_file, bare, shipped = (
        target_of(load_settings(None, {"compile.target": name}, environment={})).machine
        for name in ("with.toml", "bare.toml", "x86-64-v3")
    )
    assert of_file.memory.read == 1.5 and bare == shipped != of_file


def test_a_table_of_another_cpu_and_one_that_is_not_there_are_refused(file: Path) -> None:
    wanted = {"compile.machine": str(file), "compile.target": "armv8-neon"}
    with pytest.raises(SettingsError, match=r"was measured for .*, and this is for generic-"):
        target_of(load_settings(None, wanted, environment={}))
    with pytest.raises(SettingsError, match=r"no such table of a machine: gone.toml \(tune doctor"):
        target_of(load_settings(None, {"compile.machine": "gone.toml"}, environment={}))


def test_an_artifact_has_the_digest_of_the_table_it_was_built_by(file: Path) -> None:
    onnx.save(tiny_model(), "m.onnx")
    build = ["build", "m.onnx", "--untuned", "-o"]
    assert run_command(app, [*build, "shipped.tuned"]) == 0
    assert run_command(app, [*build, "measured.tuned", "--machine", str(file)]) == 0
    assert run_command(app, [*build, "again.tuned"]) == 0  # what is cached is another's
    digests = [load(f"{name}.tuned").spec.machine for name in ("shipped", "measured", "again")]
    assert digests == [SHIPPED.digest, MEASURED.digest, SHIPPED.digest]
