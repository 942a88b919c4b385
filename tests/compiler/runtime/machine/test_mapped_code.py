"""Object code is mapped as LLVM would link it, or left to LLVM."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.targets import target_named
from tunefarm.compiler.errors import ArtefactError
from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.runtime.machine import loaded_code
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.runtime.machine.mapped_code import MappedCode, NotMappableError, defines
from tunefarm.compiler.runtime.machine.slice_clock import SliceClock
from tunefarm.compiler.runtime.machine.thread_pool import SYMBOLS, with_pool
from tunefarm.compiler.target import host_target

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="it is for Linux on x86-64"
)

ADDS = """
declare i32 @seven()
define i32 @sum(i32 %a) { %b = call i32 @seven() %c = add i32 %a, %b ret i32 %c }
"""
SEVEN = "define i32 @seven() { ret i32 7 }"
COUNTER = """
@count = internal global i32 40
@seen = internal global i32 0
define i32 @next() {
  %old = load i32, ptr @count
  %new = add i32 %old, 1
  store i32 %new, ptr @count
  store i32 %new, ptr @seen
  %back = load i32, ptr @seen
  ret i32 %back
}
"""
POWER = """
declare float @powf(float, float)
define float @power(float %x) { %y = call float @powf(float %x, float 3.0) ret float %y }
"""
TABLE = """
@table = internal constant [4 x i32] [i32 3, i32 5, i32 7, i32 11]
define i32 @entry(i64 %n) {
  %p = getelementptr i32, ptr @table, i64 %n
  %v = load i32, ptr %p
  ret i32 %v
}
"""
OUTSIDE = (
    "@given = external global i32\ndefine i32 @read() { %v = load i32, ptr @given ret i32 %v }"
)


def compiled(*texts: str) -> tuple[bytes, ...]:
    return tuple(object_code(text, host_target()) for text in texts)


def call(code: MappedCode | LoadedCode, symbol: str, *arguments: int) -> object:
    kinds = [ctypes.c_int64] * len(arguments)
    function: Callable[..., object] = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(code.address(symbol))
    return function(*arguments)


def test_objects_call_each_other_in_any_order() -> None:
    for texts in ((ADDS, SEVEN), (SEVEN, ADDS)):
        assert call(MappedCode(compiled(*texts), ["sum"]), "sum", 35) == 42


def test_functions_lie_in_cache_lines_alike_wherever_they_are_linked() -> None:
    for texts in ((SEVEN,), (ADDS, SEVEN), (COUNTER, POWER, SEVEN)):
        assert MappedCode(compiled(*texts), ["seven"]).address("seven") % 64 == 0


def test_the_first_call_makes_no_page_fault() -> None:
    codes = [MappedCode(compiled(COUNTER), ["next"]) for _ in range(3)]
    clock, faults = SliceClock(), list[int]()
    for function in [ctypes.CFUNCTYPE(ctypes.c_int32)(code.address("next")) for code in codes]:
        clock.start()
        value = function()
        clock.seconds()
        assert value == 41
        faults.append(clock.faults)
    clock.close()
    assert faults[-1] == 0, "what such a call needs of the process is there by then"


def test_what_is_written_to_is_of_one_link() -> None:
    first, second = (MappedCode(compiled(SEVEN, COUNTER), ["next"]) for _ in range(2))
    assert [call(first, "next") for _ in range(3)] == [41, 42, 43]
    assert call(second, "next") == 41


def test_constants_next_to_code_are_read() -> None:
    code = MappedCode(compiled(SEVEN, TABLE), ["entry"])
    assert [call(code, "entry", n) for n in range(4)] == [3, 5, 7, 11]


def test_functions_of_the_process_are_called() -> None:
    code = MappedCode(compiled(POWER), ["power"])
    power = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)(code.address("power"))
    assert power(2.5) == 15.625


def test_imported_addresses_go_before_the_process() -> None:
    seven = MappedCode(compiled(SEVEN), ["seven"])
    imported = {"seven": seven.address("seven")}
    assert call(MappedCode(compiled(ADDS), ["sum"], imported), "sum", 1) == 8
    value = ctypes.c_int32(99)
    code = MappedCode(compiled(OUTSIDE), ["read"], {"given": ctypes.addressof(value)})
    assert call(code, "read") == 99


def test_of_weak_functions_a_strong_one_is_taken() -> None:
    weak = "define weak i32 @seven() { ret i32 1 }"
    for texts in ((weak, SEVEN, ADDS), (SEVEN, weak, ADDS), (SEVEN, weak, weak, ADDS)):
        assert call(MappedCode(compiled(*texts), ["sum"]), "sum", 0) == 7
    assert call(MappedCode(compiled(weak, ADDS), ["sum"]), "sum", 0) == 1


def test_memory_is_never_written_to_and_run() -> None:
    code = MappedCode(compiled(SEVEN, COUNTER), ["next", "seven"])
    address = code.address("seven")
    rights = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if "tunefarm-code" in line:
            rights[range(start, end)] = line.split()[1]
    assert next(right for part, right in rights.items() if address in part) == "r-xp"
    assert set(rights.values()) == {"r-xp", "rw-p"}


def test_code_is_unmapped_with_its_owner() -> None:
    code = MappedCode(compiled(SEVEN), ["seven"])
    start = f"{code.address('seven') // 4096 * 4096:x}-"
    assert start in Path("/proc/self/maps").read_text()
    del code
    assert start not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(
    ("texts", "symbol"),
    [((ADDS,), "sum"), ((SEVEN, SEVEN), "seven"), ((SEVEN,), "eight")],
    ids=["undefined", "twice", "not there"],
)
def test_what_does_not_link_is_left_to_llvm(texts: tuple[str, ...], symbol: str) -> None:
    with pytest.raises(NotMappableError):
        MappedCode(compiled(*texts), [symbol])
    with pytest.raises(ArtefactError, match="does not link"):
        LoadedCode(compiled(*texts), [symbol])


def test_what_is_thread_local_is_left_to_llvm() -> None:
    text = "@t = thread_local global i32 5\ndefine i32 @get() { %v = load i32, ptr @t ret i32 %v }"
    with pytest.raises(NotMappableError, match="section"):
        MappedCode(compiled(text), ["get"])


def test_code_for_other_processors_is_refused() -> None:
    arm = target_named("neoverse-n1")
    with pytest.raises(NotMappableError, match="no relocatable object"):
        MappedCode([object_code(SEVEN, arm)], ["seven"])


@given(st.integers(0), st.integers(1, 255))
def test_a_changed_header_is_linked_or_refused(place: int, flip: int) -> None:
    (content,) = compiled(SEVEN)
    changed = bytearray(content)
    changed[place % 64] ^= flip
    with suppress(NotMappableError):
        assert MappedCode([bytes(changed)], ["seven"]).address("seven")


@pytest.mark.parametrize("size", [0, 3, 63, 64, 200])
def test_a_truncated_object_is_refused(size: int) -> None:
    (content,) = compiled(SEVEN)
    with pytest.raises(NotMappableError):
        MappedCode([content[:size]], ["seven"])


def test_an_entry_says_whether_it_has_the_pool() -> None:
    whole = with_pool(SEVEN, host_target().triple)
    with_it, without = compiled(whole, SEVEN)
    assert all(defines(with_it, symbol) for symbol in SYMBOLS)
    assert not defines(without, SYMBOLS[0]) and not defines(b"no object", SYMBOLS[0])
    assert with_pool(SEVEN, "x86_64-pc-windows-msvc") == SEVEN


def test_llvm_is_asked_only_for_what_is_not_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_code, "refusal", lambda: "Permission denied")
    assert call(LoadedCode(compiled(SEVEN), ["seven"]), "seven") == 7
    with pytest.raises(ArtefactError, match="Permission denied"):
        LoadedCode(compiled(ADDS), ["sum"])
