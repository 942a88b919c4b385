"""Settings: layers, presets, and one readable line for every mistake."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tunefarm.compiler.target import Target
from tunefarm.configs.errors import SettingsError, TunefarmError
from tunefarm.configs.settings import (
    SERVED_BY,
    CacheTable,
    MemoryTable,
    Settings,
    load_settings,
    load_target,
    presets,
    shipped_machine,
    shown_precision,
    targets,
)


def load(
    preset: str | None = None,
    overrides: dict[str, object] | None = None,
    environment: dict[str, str] | None = None,
) -> Settings:
    return load_settings(preset, overrides, environment=environment or {})


def refusal(*arguments: Any, **keywords: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        load(*arguments, **keywords)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_presets_are_quick_overnight_and_ci() -> None:
    assert presets() == ("ci", "overnight", "quick")


@pytest.mark.parametrize("name", presets())
def test_every_preset_loads(name: str) -> None:
    assert load(name) != load()


def test_no_preset_gives_the_defaults() -> None:
    assert load() == Settings()


def test_quick_ends_within_ten_minutes() -> None:
    quick = load("quick")
    assert quick.search.minutes is not None
    assert quick.search.minutes <= 9


def test_later_layers_win(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[search]\ntrials_per_task = 3\nseed = 4\nbatch_size = 5\n")
    settings = load(
        str(file),
        {"search.batch_size": 7, "search.total_trials": None},
        {"TUNEFARM_SEARCH__SEED": "6", "TUNEFARM_SEARCH__BATCH_SIZE": "6", "HOME": "/"},
    )
    assert settings.search.trials_per_task == 3
    assert settings.search.seed == 6
    assert settings.search.batch_size == 7
    assert settings.search.total_trials is None


def test_environment_values_are_toml_or_plain_strings() -> None:
    settings = load(
        environment={
            "TUNEFARM_DATABASE__URL": "my records.db",
            "TUNEFARM_SEARCH__COST_MODEL__LEARNING_RATE": "0.5",
            "TUNEFARM_MEASURE__RUNNER": '"local"',
        }
    )
    assert settings.database.url == "my records.db"
    assert settings.search.cost_model.learning_rate == 0.5
    assert settings.measure.runner == "local"


def test_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFARM_MEASURE__SLOTS", "3")
    assert load_settings().measure.slots == 3


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().search.seed = 3


def test_settings_round_trip_through_json() -> None:
    settings = load("quick", {"compile.threads": 2})
    assert Settings.model_validate(settings.to_json()) == settings


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("search.trails_per_task", "search.trials_per_task"),
        ("serch.seed", "search.seed"),
        ("trials_per_task", "search.trials_per_task"),
        ("search.cost_model.depth", "search.cost_model.max_depth"),
        ("mesure", "measure"),
    ],
)
def test_unknown_key_is_refused_with_the_nearest_one(key: str, nearest: str) -> None:
    text = refusal(overrides={key: 1})
    assert f"unknown key {key} " in text
    assert text.endswith(f"(did you mean {nearest}?)")


def test_unknown_variable_is_named() -> None:
    text = refusal(environment={"TUNEFARM_MEASURE__SLOTSS": "3"})
    assert text.startswith("TUNEFARM_MEASURE__SLOTSS: unknown key measure.slotss")
    assert "measure.slots?" in text


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("search.trials_per_task", "many", "valid integer"),
        ("search.trials_per_task", 2.5, "valid integer"),
        ("search.trials_per_task", True, "valid integer"),
        ("search.trials_per_task", 0, "greater than or equal to 1"),
        ("search.minutes", -1, "greater than 0"),
        ("search.minutes", float("nan"), "finite"),
        ("search.minutes", 10**400, "valid number"),
        ("search.exploration", 1.5, "less than or equal to 1"),
        ("search.sampler", 3, "valid string"),
        ("search.cost_model", 3, "section"),
        ("compile.precision", "fast", "'bf16', 'fp16', 'int8' or 'auto'"),
        ("compile.precision", "bf61", "did you mean bf16?"),
        ("measure.runner", 1, "valid string"),
        ("measure.samples", 3, "greater than or equal to 4"),
        ("measure.samples", 1001, "less than or equal to 1000"),
        ("measure.samples", 14.5, "valid integer"),
        ("measure.min_sample_seconds", 0, "greater than or equal to 0.00001"),
        ("measure.min_sample_seconds", 2.5, "less than or equal to 1"),
        ("measure.min_sample_seconds", float("inf"), "finite"),
        ("measure.unstable_above", 0, "greater than or equal to 0.001"),
        ("measure.unstable_above", 1.5, "less than or equal to 1"),
        ("database.url", "", "at least 1 character"),
    ],
)
def test_wrong_value_is_one_line(key: str, value: object, reason: str) -> None:
    text = refusal(overrides={key: value})
    assert text.startswith(f"option: {key} = ")
    assert reason in text


def test_unknown_preset_is_refused_with_the_nearest_one() -> None:
    assert refusal("quik") == "unknown preset 'quik' (did you mean quick?)"
    assert refusal("zzz") == "unknown preset 'zzz' (known: ci, overnight, quick)"


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert "no such settings file" in refusal(str(tmp_path / "none.toml"))
    assert "no such settings file" in refusal("none.toml")
    assert "is a folder" in refusal(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[search\n", "not valid TOML"),
        (b"\xff\xfe\x00", "not a text file"),
        (b"search.seed = " + b"9" * 5000, "not valid TOML"),
        (b"x = " + b"[" * 5000, "not valid TOML"),
        (b"[measure]\nsample = 3\n", "unknown key measure.sample (did you mean measure.samples?)"),
        (b'[compile]\nthreads = "2"\n', "mine.toml: compile.threads = '2': "),
        (b"search = 3\n", "mine.toml: search = 3: this is a section"),
        (b'[compile]\nnumerics = "fast"\n', "mine.toml: compile.precision = 'fast'"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_name(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(content)
    text = refusal(str(file))
    assert reason in text and str(file) in text


@pytest.mark.parametrize("key", ["", ".", "search.", "search..seed"])
def test_malformed_key_is_refused(key: str) -> None:
    assert "unknown key" in refusal(overrides={key: 3})


@pytest.mark.parametrize("name", targets())
def test_every_named_target_loads(name: str) -> None:
    target = load_target(name)
    assert target.l1_bytes < target.l2_bytes
    assert list(target.features) == sorted(target.features)


@pytest.mark.parametrize("name", targets())
def test_every_named_target_has_a_table_in_which_nearer_is_faster(name: str) -> None:
    machine = load_target(name).machine
    assert machine is not None and machine.source.startswith(("measured", "estimated", "memory"))
    assert machine.l1.latency < machine.l2.latency
    levels: list[CacheTable | MemoryTable] = [machine.l2, machine.l3, machine.memory]
    for near, far in pairwise(levels):
        assert near.read >= far.read and near.write >= far.write and near.latency < far.latency
    assert len(machine.digest) == 16


def test_a_table_is_no_part_of_a_target_and_its_source_no_part_of_its_digest() -> None:
    settings = load_target("znver4")
    assert settings.machine is not None and "machine" not in settings.model_dump()
    target = Target.from_json(settings.model_dump())
    other = settings.machine.model_copy(update={"source": "measured elsewhere"})
    assert other.digest == settings.machine.digest == target.machine.digest
    faster = settings.machine.memory.model_copy(update={"read": 99.0})
    other = other.model_copy(update={"memory": faster})
    assert other.digest != settings.machine.digest
    key = target.key
    measured = replace(target, table=other)
    assert measured.machine is other and measured.key == key and measured != target
    assert Target.from_json(measured.to_json()) == target
    assert target.machine.digest == settings.machine.digest


@pytest.mark.parametrize(
    ("cpu", "architecture", "lanes", "name"),
    [
        ("znver4", "x86_64", 16, "znver4"),
        ("znver4", "x86_64", 8, "x86-64-v3"),
        ("emeraldrapids", "x86_64", 16, "sapphirerapids"),
        ("skylake-avx512", "x86_64", 16, "skylake-avx512"),
        ("skylake-avx512", "x86_64", 8, "x86-64-v3"),
        ("znver3", "x86_64", 8, "znver3"),
        ("znver2", "x86_64", 8, "x86-64-v3"),
        ("of-tomorrow", "x86_64", 16, "x86-64-v4"),
        ("native", "x86_64", 4, "x86-64-v2"),
        ("generic", "aarch64", 4, "armv8-neon"),
        ("neoverse-v2", "aarch64", 4, "neoverse-v1"),
    ],
)
def test_a_cpu_has_the_table_of_the_target_most_like_it(
    cpu: str, architecture: str, lanes: int, name: str
) -> None:
    assert shipped_machine(cpu, architecture, lanes) == load_target(name).machine


@pytest.mark.parametrize(
    ("line", "other", "message"),
    [
        ("memory = { read", "memory = { reed", "unknown key machine.memory.reed"),
        (
            "hand_over = ",
            "hand_over = -",
            r"machine.threads.hand_over = -4300.0: input should be g",
        ),
        ("latency = 4.0", "latency = 0", "machine.l1.latency = 0: input should be greater than 0"),
        ("\nl3 = ", "\n# ", "machine.l3 is missing"),
    ],
)
def test_a_table_with_a_mistake_is_refused_by_name(
    tmp_path: Path, line: str, other: str, message: str
) -> None:
    source = Path(__file__).parents[2] / "configs/targets/znver4.toml"
    text, file = source.read_text(), tmp_path / "mine.toml"
    assert line in text
    file.write_text(text.replace(line, other, 1))
    with pytest.raises(SettingsError, match=message):
        load_target(str(file))


def test_unknown_target_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(SettingsError, match=r"unknown target 'x86-64-v9' \(did you mean x86-64-v"):
        load_target("x86-64-v9")


@pytest.mark.parametrize(
    ("name", "target"),
    [("haswell", "x86-64-v3"), ("Graviton3", "neoverse-v1"), ("skx", "skylake-avx512")],
)
def test_cpus_without_a_target_of_their_own_are_told_which_serves(name: str, target: str) -> None:
    with pytest.raises(SettingsError, match=rf"unknown target '{name}' \(take {target}, the best"):
        load_target(name)


def test_every_cpu_that_is_served_is_so_by_a_target_with_a_name() -> None:
    assert {*SERVED_BY.values()} - {"host"} <= {*targets()}
    assert not {*SERVED_BY} & {*targets()}


def test_incomplete_target_names_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    source = Path(__file__).parents[2] / "configs/targets/x86-64-v3.toml"
    file.write_text(source.read_text().replace("lanes = 8\n", ""))
    with pytest.raises(SettingsError, match=r"mine.toml: lanes is missing"):
        load_target(str(file))


def test_settings_error_belongs_to_the_tree_of_errors() -> None:
    assert issubclass(SettingsError, TunefarmError)


def test_presets_hold_nothing_that_equals_the_default() -> None:
    defaults = Settings().to_json()
    for name in presets():
        text = (Path(__file__).parents[2] / f"configs/{name}.toml").read_text()
        for section, values in tomllib.loads(text).items():
            for key, value in values.items():
                assert isinstance(value, dict) or defaults[section][key] != value, (name, key)


def test_the_former_name_of_precision_works_in_files_variables_and_overrides(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[compile]\nnumerics = "f16"\n')
    assert str(load(str(file)).compile.numerics) == "f16"
    assert load(environment={"TUNEFARM_COMPILE__NUMERICS": "bf16"}).compile.numerics == "bf16"
    assert load(None, {"compile.numerics": "strict"}).compile.numerics == "strict"
    later = load(str(file), environment={"TUNEFARM_COMPILE__PRECISION": "int8"})
    assert later.compile.numerics == "int8"


def test_fp16_is_kept_as_f16_under_the_key_that_records_have() -> None:
    settings = load(None, {"compile.precision": "fp16"})
    assert settings == load(None, {"compile.numerics": "f16"})
    assert settings.to_json()["compile"]["numerics"] == "f16"
    assert shown_precision("f16") == "fp16" and shown_precision("bf16") == "bf16"


def test_both_names_of_a_setting_in_one_place_are_refused() -> None:
    names = "compile.precision and compile.numerics are the same setting (give one of them)"
    both = {"compile.precision": "bf16", "compile.numerics": "bf16"}
    assert refusal(overrides=both) == f"option: {names}"
    variables = dict.fromkeys(("TUNEFARM_COMPILE__NUMERICS", "TUNEFARM_COMPILE__PRECISION"), "bf16")
    assert "are the same setting" in refusal(environment=variables)
