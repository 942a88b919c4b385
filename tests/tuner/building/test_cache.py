"""A build that is repeated asks nobody, and is found only where everything is the same."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tests.processes import python
from tests.tuner.building.test_flow import remember
from tunefarm.compiler.content_cache import ContentCache
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.configs.settings import Settings, load_settings
from tunefarm.db import model_queries
from tunefarm.db.store import Store
from tunefarm.tuner.building import cache, record
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.record import open_records, record_build
from tunefarm.tuner.building.request import BuildRequest, BuildResult


class Builder:
    """Builds the tiny model, and counts how often records were asked for."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model = folder / "tiny.onnx"
        self.db = folder / "tuning.db"
        self.folder = folder
        self.lookups = 0
        onnx.save(tiny_model(), self.model)
        with Store.open(self.db) as store:
            remember(store, self.kernels[0], 1)

        def counted(databases: Sequence[str]) -> Any:
            self.lookups += 1
            return open_records(databases)

        monkeypatch.setattr(record, "open_records", counted)

    @property
    def kernels(self) -> list[FusedKernel]:
        calls = kernels_of(self.model).calls
        return [call.kernel for call in calls if isinstance(call, KernelCall)]

    def settings(self, **values: object) -> Settings:
        names = {name.replace("__", "."): value for name, value in values.items()}
        folder = {"cache.folder": str(self.folder / "cache"), "database.url": str(self.db)}
        return load_settings(None, {**folder, **names}, environment={})

    def build(self, output: str = "built.tuned", **options: Any) -> tuple[bytes, BuildResult]:
        settings = options.pop("settings", None) or self.settings()
        path = self.folder / output
        result = build(BuildRequest(str(self.model), str(path), settings, **options))
        return path.read_bytes(), result

    def listed(self) -> list[str]:
        with Store.open(self.db, read_only=True) as store:
            return [Path(build.report["output"]).name for build in model_queries.builds(store)]


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Builder]:
    yield Builder(tmp_path, monkeypatch)


def test_a_repeated_build_asks_for_no_records(builder: Builder) -> None:
    first = builder.build()
    assert builder.lookups == 1
    assert builder.build() == first
    other, result = builder.build("other.tuned")
    assert other == first[0] and result.not_listed == ""
    assert result.files == (str(builder.folder / "other.tuned"),)
    assert result.report == first[1].report
    assert builder.lookups == 1


@pytest.mark.parametrize(
    "facts", [None, [], {}, {"report": {}}, {"kept": {"digest": 1, "chunks": []}, "kernels": [7]}]
)
def test_entries_with_other_facts_count_as_missing(builder: Builder, facts: object) -> None:
    first = builder.build()
    folder = builder.folder / "cache"
    for path in sorted(folder.glob("??/*.entry")):
        ContentCache(folder).add(f"{path.parent.name}{path.stem}", facts)
    assert builder.build() == first
    assert builder.lookups == 2


def test_an_artefact_is_listed_once(builder: Builder) -> None:
    builder.build()
    builder.build("other.tuned")
    no_cache = builder.settings(cache__enabled=False)
    builder.build("third.tuned", settings=no_cache)
    assert builder.listed() == ["built.tuned"]
    builder.build("strict.tuned", settings=builder.settings(compile__threads=2))
    assert builder.listed() == ["strict.tuned", "built.tuned"]


@pytest.mark.parametrize("options", [{"untuned": True}, {"fallback": True}])
def test_every_kind_of_artefact_is_found_again(builder: Builder, options: dict[str, Any]) -> None:
    plain = builder.build()
    first = builder.build(**options)
    assert builder.build(**options) == first
    assert first[0] != plain[0]
    assert builder.lookups == 2


def test_a_build_for_another_cpu_is_found_again(builder: Builder) -> None:
    settings = builder.settings(compile__target="x86-64-v4")
    first = builder.build(settings=settings)
    assert builder.build(settings=settings) == first
    assert builder.lookups == 1


def test_a_new_record_is_looked_up(builder: Builder) -> None:
    before, _ = builder.build()
    with Store.open(builder.db) as store:
        remember(store, builder.kernels[0], 2)
    after, result = builder.build()
    assert builder.lookups == 2
    assert after != before
    assert "2" in {use.report.record_id for use in result.report.kernels}


def test_a_changed_model_or_name_is_another_build(builder: Builder) -> None:
    builder.build()
    builder.model = builder.model.rename(builder.folder / "small.onnx")
    builder.build()
    changed = tiny_model()
    changed.graph.name = "other"
    onnx.save(changed, builder.model)
    builder.build()
    assert builder.lookups == 3


@pytest.mark.parametrize(
    "change",
    [
        {"compile__threads": 2},
        {"compile__numerics": "strict"},
        {"compile__denormals": "keep"},
        {"compile__target": "x86-64-v2"},
    ],
)
def test_other_settings_are_another_build(builder: Builder, change: dict[str, object]) -> None:
    builder.build()
    builder.build(settings=builder.settings(**change))
    assert builder.lookups == 2


def test_other_programs_are_another_build(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder.build()
    monkeypatch.setattr(cache, "program", lambda: ("changed",))
    builder.build()
    assert builder.lookups == 2


@pytest.mark.parametrize("damage", ["flipped", "removed"])
def test_a_damaged_artefact_is_built_again(builder: Builder, damage: str) -> None:
    first = builder.build()
    kept = max((builder.folder / "cache").glob("*/*"), key=lambda path: path.stat().st_size)
    content = bytearray(kept.read_bytes())
    assert bytes(content) == first[0]
    content[len(content) // 2] ^= 1
    if damage == "flipped":
        kept.write_bytes(content)
    else:
        kept.unlink()
    assert builder.build() == first
    assert builder.lookups == 2
    assert builder.build() == first
    assert builder.lookups == 2


def test_required_share_counts_for_repeated_builds_too(builder: Builder) -> None:
    builder.build()
    (builder.folder / "built.tuned").unlink()
    with pytest.raises(TunefarmError, match=r"is tuned, 100\.0 % is required"):
        builder.build(require_tuned=1.0)
    assert not (builder.folder / "built.tuned").exists()
    assert builder.lookups == 1


def test_an_output_that_cannot_be_written_is_an_error(builder: Builder) -> None:
    builder.build()
    with pytest.raises(TunefarmError, match="cannot write"):
        builder.build("no/such/folder.tuned")


def test_records_that_come_while_it_is_built_are_not_forgotten(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*arguments: Any) -> str:
        with Store.open(builder.db) as store:
            remember(store, builder.kernels[0], 2)
        return record_build(*arguments)

    monkeypatch.setattr(record, "record_build", slow)
    before, _ = builder.build()
    monkeypatch.undo()
    after, result = builder.build()
    assert after != before
    assert "2" in {use.report.record_id for use in result.report.kernels}


def test_what_could_not_be_listed_is_said_each_time_and_listed_when_it_can(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    writeable = False
    with monkeypatch.context() as patch:
        patch.setattr(record, "record_build", lambda *_: "read-only")
        patch.setattr(os, "access", lambda *_, **__: writeable)
        first = builder.build()
        assert first[1].not_listed == "read-only"
        assert builder.build() == first
        assert builder.lookups == 1
        writeable = True
        assert builder.build() == first
        assert builder.lookups == 2
    assert builder.build()[1].not_listed == ""
    assert builder.listed() == ["built.tuned"]


def test_a_repeated_build_imports_little(builder: Builder) -> None:
    program = (
        "import sys; from tunefarm.tuner.commands.cli import app\n"
        "from tunefarm.tuner.commands.command_line import run_command\n"
        "code = run_command(app, sys.argv[1:])\n"
        "print(sorted({'numpy', 'onnx', 'sqlalchemy', 'xgboost', 'ray'} & set(sys.modules)))\n"
        "sys.exit(code)"
    )
    options = ["build", "--model", str(builder.model), "--db", str(builder.db), "--output", "out"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(builder.folder)}
    printed = []
    for _ in range(2):
        done = python("-c", program, *options, cwd=builder.folder, env=environment, check=True)
        printed.append(done.stdout.splitlines())
    first, again = printed
    assert "sqlalchemy" in first[-1] and again[-1] == "[]"
    assert again[:-1] == first[:-1]
