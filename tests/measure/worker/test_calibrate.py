"""Calibration: loops compute what they say, rates are in cycles of the clock loop, and what comes
out is a table."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.targets import target_named
from tunefarm.compiler.llvm import peak_loop as loops
from tunefarm.compiler.llvm.machine import assembly, object_code
from tunefarm.compiler.llvm.peak_loop import STREAMS, MeasuredLoop
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.measure.worker import calibrate as calibration

KNOWN = ("stride", "interleaved", "crowded", "ahead", "short_functions")
"""What is not measured, but taken from the shipped table; it may be None."""

ROUNDS, BLOCK = 6, 4  # two of the rounds read data that others have read


def run(loop: MeasuredLoop, data: npt.NDArray[Any], type: Any, mask: int = BLOCK - 1) -> Any:
    """The results of a loop over so many rounds, as an array of the type."""
    results = np.zeros(loop.result_bytes, np.uint8).view(type)
    code = LoadedCode([object_code(loop.text, host_target())], [loop.symbol])
    arguments = ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
    function = ctypes.CFUNCTYPE(None, *arguments)(code.address(loop.symbol))
    function(ROUNDS, mask, data.ctypes.data, results.ctypes.data)
    return results


def rounds_of(data: npt.NDArray[Any]) -> Any:
    """The data of each round, shape [rounds, elements of a round]."""
    return data.reshape(BLOCK, -1)[[round % BLOCK for round in range(ROUNDS)]]


def test_the_reading_loop_sums_what_it_reads_again_and_again() -> None:
    loop = loops.read_loop(host_target())
    data = np.arange(BLOCK * loop.round_bytes // 8, dtype=np.int64)
    assert (run(loop, data, np.int64) == rounds_of(data).sum(axis=0)).all()


def test_the_writing_loop_writes_every_vector_of_its_rounds_and_no_other() -> None:
    loop = loops.write_loop(host_target())
    vector = host_target().vector_bytes // 8
    data = np.arange((BLOCK + 1) * loop.round_bytes // 8, dtype=np.int64)
    expected = data.copy()
    within = BLOCK * loop.round_bytes // 8
    expected[:within] = np.tile(data[:vector], within // vector)
    run(loop, data, np.int64)
    assert (data == expected).all()


def test_the_chasing_loop_follows_offsets() -> None:
    backwards = 8 * np.array([6, 0, 1, 2, 3, 4, 5], np.int64)
    (end, *_) = run(loops.chase_loop(), backwards, np.int64, 0)
    assert end == 8 * (-ROUNDS * STREAMS % 7)


def test_the_converting_loop_sums_bf16() -> None:
    loop = loops.convert_loop(host_target())
    numbers = np.arange(BLOCK * loop.round_bytes // 2) % 128
    data = (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    assert (run(loop, data, np.float32) == rounds_of(numbers).sum(axis=0)).all()


def test_the_gathering_loop_takes_each_element_from_a_line_of_its_own() -> None:
    loop, lanes = loops.gather_loop(host_target()), host_target().lanes(DType.F32)
    data = np.arange(16 * (lanes + BLOCK), dtype=np.float32)
    step = loop.round_bytes // 4
    expected = [
        [
            sum(data[16 * lane + number + round % BLOCK * step] for round in range(ROUNDS))
            for lane in range(lanes)
        ]
        for number in range(STREAMS)
    ]
    assert (run(loop, data, np.float32) == np.array(expected).ravel()).all()


@pytest.mark.parametrize("target", [None, host_target()])
def test_each_tick_waits_for_the_one_before(target: Target | None) -> None:
    loop = loops.tick_loop(target)
    value = ROUNDS
    for _ in range(ROUNDS * loop.steps // 2):
        value = (value + 5) ^ 5
    assert run(loop, np.zeros(1), np.int64, 5)[0] == value


@pytest.mark.parametrize("name", ["skylake-avx512", "x86-64-v3", "neoverse-n1"])
def test_every_second_tick_has_a_multiply_add_of_vectors_in_registers(name: str) -> None:
    target = target_named(name)
    loop = loops.tick_loop(target)
    code = assembly(loop.text, target).split("fmla" if "neoverse" in name else "vfmadd")
    assert len(code) - 1 == loop.steps // 2


def test_the_reading_loop_addresses_data_by_one_register() -> None:
    target = target_named("skylake-avx512")
    adds = re.findall(r"vpaddq\t(\S*\(.*\)), %zmm", assembly(loops.read_loop(target).text, target))
    assert len(adds) == STREAMS and not any("," in address for address in adds)


@pytest.mark.parametrize(
    ("name", "make", "instruction"),
    [
        ("znver4", loops.dot_loop, "vpdpbusd"),
        ("neoverse-n1", loops.dot_loop, "udot"),
        ("sapphirerapids", loops.tile_loop, "tdpbf16ps"),
    ],
)
def test_dot_products_and_tiles_are_one_instruction_each(
    name: str, make: Callable[[Target], MeasuredLoop | None], instruction: str
) -> None:
    target = target_named(name)
    loop = make(target)
    assert loop is not None
    assert assembly(loop.text, target).count(f"{instruction}\t") == loop.steps
    assert loop.round_bytes == 0  # it reads no data


@pytest.mark.parametrize("make", [loops.dot_loop, loops.tile_loop])
def test_a_target_without_such_instructions_has_no_loop_of_them(
    make: Callable[[Target], MeasuredLoop | None],
) -> None:
    assert make(target_named("x86-64-v2")) is None


def test_rates_are_in_ticks_whatever_the_clock_does(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = iter(np.linspace(1.0, 3.0, 1000))
    bench = calibration._Bench(host_target(), [0])

    def half_a_tick(rounds: int) -> None:
        raise AssertionError("only its time counts")

    def seconds(call: Callable[[int], None], rounds: int) -> float:
        cycles = 7.5 if call is half_a_tick else loops.tick_loop().steps
        return rounds * cycles * 1e-6 * float(next(speeds))

    monkeypatch.setattr(calibration, "_seconds", seconds)
    assert bench.cycles(half_a_tick) == pytest.approx(7.5, rel=0.02)


def test_the_best_of_several_measurements_counts() -> None:
    quiet: dict[str, dict[str, float | None]]
    shared: dict[str, dict[str, float | None]]
    quiet = {"l2": {"read": 40.0, "latency": 14.0, "stride": None}, "vectors": {"fma": 2.0}}
    shared = {"l2": {"read": 44.0, "latency": 21.0, "stride": None}, "vectors": {"fma": 1.1}}
    expected = {"l2": {"read": 44.0, "latency": 14.0, "stride": None}, "vectors": {"fma": 2.0}}
    assert calibration._best([quiet, shared]) == calibration._best([shared, quiet]) == expected


def test_what_tiles_read_between_others_is_the_shipped_number_within_what_was_measured() -> None:
    fitted, unknown = (target_named(name).machine.memory for name in ("znver4", "x86-64-v4"))
    assert unknown.interleaved is None and unknown.of_tiles == 4.0
    assert calibration._interleaved(5.8, unknown) == 4.0
    assert calibration._interleaved(2.5, unknown) == 2.5
    assert calibration._interleaved(7.1, fitted) == fitted.interleaved


@pytest.mark.alone
def test_a_machine_is_measured_as_a_table_of_two_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PAIRS": 1, "SLICE_SECONDS": 1e-4, "FAR_BYTES": 1 << 20}.items():
        monkeypatch.setattr(calibration, name, value)
    machine = calibration.calibrate(host_target())
    assert machine.source.startswith("measured on ")
    assert machine.l1.line_bytes == host_target().machine.l1.line_bytes
    for section in machine.model_dump(exclude={"source"}).values():
        for number in (value for name, value in section.items() if name not in KNOWN):
            assert number > 0 and number == float(f"{number:.2g}")
