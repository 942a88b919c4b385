"""Builds from the command line keep compiled kernels, where and when the settings say so."""

from __future__ import annotations

import pwd
from pathlib import Path

import onnx
import pytest

from tests.compiler.llvm.test_object_cache import entries
from tests.end_to_end.tiny_model import tiny_model
from tunefarm.compiler.content_cache import ContentCache
from tunefarm.compiler.llvm.object_cache import ObjectCache
from tunefarm.configs.settings import cache_folder, load_settings
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> list[ObjectCache]:
    """Every cache that is opened from now on."""
    made: list[ObjectCache] = []
    initialise = ObjectCache.__init__

    def remember(cache: ObjectCache, folder: ContentCache) -> None:
        initialise(cache, folder)
        made.append(cache)

    monkeypatch.setattr(ObjectCache, "__init__", remember)
    return made


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in with the model tiny.onnx; caches go to `caches` below it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    onnx.save(tiny_model(), tmp_path / "tiny.onnx")
    return tmp_path


def build(*options: str) -> None:
    arguments = ["build", "--model", "tiny.onnx", "--untuned", "--output", "tiny.tuned"]
    assert run_command(app, [*arguments, *options]) == 0


def test_a_second_build_compiles_nothing(work: Path, caches: list[ObjectCache]) -> None:
    build("--emit", "llvm")  # a form that is not kept as a whole
    first = (work / "tiny.tuned").read_bytes()
    build("--emit", "llvm")
    assert [cache.cache.folder for cache in caches] == [work / "caches" / "tunefarm"] * 2
    assert (caches[0].hits, caches[0].misses) == (0, len(entries(work / "caches")))
    assert (caches[1].hits, caches[1].misses) == (caches[0].misses, 0)
    assert (work / "tiny.tuned").read_bytes() == first


def test_without_cache_nothing_is_written_or_read(work: Path, caches: list[ObjectCache]) -> None:
    build("--no-cache")
    assert caches == []
    assert sorted(path.name for path in work.iterdir()) == ["tiny.onnx", "tiny.tuned"]


def test_the_settings_switch_the_cache_off(
    work: Path, caches: list[ObjectCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "off.toml").write_text("[cache]\nenabled = false\n")
    build("--config", "off.toml")
    monkeypatch.setenv("TUNEFARM_CACHE__ENABLED", "false")
    build()
    assert caches == [] and not (work / "caches").exists()


def test_the_settings_name_the_folder(work: Path, caches: list[ObjectCache]) -> None:
    (work / "mine.toml").write_text('[cache]\nfolder = "mine/code"\n')
    build("--config", "mine.toml")
    build("--config", "mine.toml", "--no-cache")
    assert [cache.cache.folder for cache in caches] == [Path("mine/code")]
    assert len(entries(work / "mine")) >= caches[0].misses > 0
    assert not (work / "caches").exists()


def test_a_model_is_built_where_the_cache_cannot_be_written(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "caches").write_text("no folder")
    build("--json", "-")
    assert capsys.readouterr().err == ""
    assert (work / "caches").read_text() == "no folder"


def test_a_cache_that_others_may_write_to_is_noted_once_and_not_used(
    work: Path, caches: list[ObjectCache], capsys: pytest.CaptureFixture[str]
) -> None:
    shared = work / "caches"
    shared.mkdir()
    shared.chmod(0o777)
    build()
    printed = capsys.readouterr().err
    assert printed.count("note: nothing is taken from or kept in the cache") == 1
    assert f"others may write to {shared} (chmod go-w {shared})" in printed
    assert caches == [] and entries(shared) == []


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(user: int) -> object:
        raise KeyError(user)

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", homeless)
    assert cache_folder(load_settings()) is None


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "HOME"])
def test_a_cache_is_never_below_the_folder_that_a_command_runs_in(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv(variable, "relative")
    assert cache_folder(load_settings()) in (None, Path("/home/me/.cache/tunefarm"))


def test_the_cache_is_in_the_users_folder_for_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder(load_settings()) == Path("/somewhere/tunefarm")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder(load_settings()) == Path("/home/me/.cache/tunefarm")
