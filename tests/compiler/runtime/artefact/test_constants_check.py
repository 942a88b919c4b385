"""Damaged weights are found while a model loads and runs, and nobody gets their results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.runtime.edited_artefacts import rewrite_manifest
from tests.compiler.runtime.hand_kernels import COUNT, chain_spec, sealed
from tunefarm import compiler
from tunefarm.compiler.errors import ArtefactError
from tunefarm.compiler.runtime.artefact import artefact, constants_check, file_header
from tunefarm.compiler.runtime.artefact.constants_check import ConstantsCheck, large_constants
from tunefarm.compiler.runtime.artefact.file_header import SUMMED
from tunefarm.compiler.runtime.artefact.seal import part_digests
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.buffers import aligned_empty

WEIGHT = np.linspace(-1, 1, COUNT, dtype=np.float32)
X = {"x": np.zeros(COUNT, np.float32)}


@pytest.fixture(autouse=True)
def all_weights_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants_check, "WORTH_A_THREAD_BYTES", 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Executable(chain_spec(WEIGHT)).save(tmp_path / "good.tuned")
    return tmp_path / "good.tuned"


@pytest.fixture
def damaged(path: Path) -> Path:
    content = bytearray(path.read_bytes())
    content[content.index(WEIGHT.tobytes()) + 5] ^= 1
    bad = path.with_name("bad.tuned")
    bad.write_bytes(content)
    return bad


def test_a_sound_model_runs_and_is_checked_once(path: Path) -> None:
    model = compiler.load(path)
    results = [model.run(X)["y"] for _ in range(3)]
    for result in results:
        np.testing.assert_allclose(result, np.exp(4 * WEIGHT), rtol=1e-5)


USES: dict[str, Callable[[Executable], object]] = {
    "run": lambda model: model.run(X),
    "run into": lambda model: model.run(X, {"y": np.empty(COUNT, np.float32)}),
    "bind": lambda model: model.bind(X),
    "profile": lambda model: model.profile(X, 1),
    "save": lambda model: model.save("/nowhere/at.all"),
    "placed anew": lambda model: model.placed_anew(np.copy),
    "kernel address": lambda model: model.kernel_address("kernel_add"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_damaged_weights_give_no_results(
    damaged: Path, use: Callable[[Executable], object]
) -> None:
    model = compiler.load(damaged)
    for _ in range(2):  # it stays an error
        with pytest.raises(ArtefactError, match=r"bad\.tuned is damaged: part \d has changed"):
            use(model)


@pytest.mark.parametrize("number", [0, 2**32], ids=["other", "no CRC-32"])
def test_weights_are_held_against_the_crc_32_of_the_manifest(path: Path, number: int) -> None:
    assert path.read_bytes()[8] == SUMMED
    rewrite_manifest(path, lambda manifest: manifest["parts"][-1].__setitem__(3, number))
    model = compiler.load(path)
    with pytest.raises(ArtefactError, match="damaged: part"):
        model.run(X)
    artefact.read(path)  # which compares SHA-256


def test_files_without_a_crc_32_are_held_against_their_sha_256(damaged: Path) -> None:
    rewrite_manifest(damaged, lambda manifest: manifest["parts"][-1].pop())
    content = bytearray(damaged.read_bytes())
    content[8] = file_header.TWO_VARIANTS
    damaged.write_bytes(content)
    model = compiler.load(damaged)
    with pytest.raises(ArtefactError, match="damaged: part"):
        model.run(X)


def test_reading_compares_the_sha_256(damaged: Path) -> None:
    with pytest.raises(ArtefactError, match="damaged: part"):
        artefact.read(damaged)


def test_damaged_code_is_an_error_of_loading(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(b"\x7fELF") + 70] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match="damaged: part"):
        compiler.load(path)


def test_small_weights_are_checked_by_loading(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants_check, "WORTH_A_THREAD_BYTES", 1 << 20)
    with pytest.raises(ArtefactError, match="damaged: part"):
        compiler.load(damaged)


def test_weights_that_may_count_elements_are_checked_sooner(tmp_path: Path) -> None:
    integers = aligned_empty((COUNT,), np.dtype(np.int32))
    integers[...] = 1
    spec = chain_spec(WEIGHT)
    spec = replace(spec, constants=(integers,), digests=part_digests(spec.objects, (integers,)))
    Executable(sealed(spec)).save(tmp_path / "integers.tuned")
    _, check = artefact.open_programs(tmp_path / "integers.tuned")
    assert check is None


def test_only_what_all_variants_take_for_weights_is_checked_later() -> None:
    weights = {"parts": [0, 1, 2, 3], "constant_types": [["f32", [4]], ["i64", [2]]]}
    assert large_constants([weights], [9] * 4) == {2}
    code_there = {"parts": [0, 2], "constant_types": []}
    assert large_constants([weights, code_there], [9] * 4) == frozenset()
    entry_too = {"parts": [2], "constant_types": [["f32", [4]]]}
    assert large_constants([weights, entry_too], [9] * 4) == frozenset()


@pytest.mark.parametrize(
    "variant",
    [
        None,
        3,
        [],
        {},
        {"parts": 3, "constant_types": []},
        {"parts": [0, 1], "constant_types": [1]},
        {"parts": [0, "a"], "constant_types": [["f32", [1]]]},
        {"parts": [0, 10**30], "constant_types": [["f32", [1]]]},
        {"parts": [0, 1], "constant_types": [[["f32"], [1]]]},
    ],
    ids=repr,
)
def test_what_is_no_manifest_has_nothing_to_check_later(variant: object) -> None:
    assert large_constants([variant], [9, 9]) == frozenset()


def test_a_check_is_waited_for() -> None:
    goes_on, ended = threading.Event(), []

    def slow() -> None:
        goes_on.wait(10)
        ended.append(True)

    check = ConstantsCheck(slow)
    assert not ended
    goes_on.set()
    check.wait()
    assert ended
