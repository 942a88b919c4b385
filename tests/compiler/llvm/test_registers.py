"""Elements of local buffers stay values until control flow joins, and go to memory once."""

from __future__ import annotations

import pytest

from tunefarm.compiler.expr.affine import Affine
from tunefarm.compiler.llvm.registers import Registers
from tunefarm.compiler.llvm.writer import Value
from tunefarm.compiler.types.dtypes import DType


class Memory:
    """What was stored: (buffer, offset, value), in order."""

    def __init__(self) -> None:
        self.stored: list[tuple[str, int, str]] = []
        self.registers = Registers(self._store)
        self.registers.add("t")

    def _store(self, buffer: str, form: Affine, value: Value) -> None:
        self.stored.append((buffer, form.constant, value.text))


def at(offset: int) -> Affine:
    return Affine(offset, ())


def vector(name: str, width: int = 4) -> Value:
    return Value(name, DType.F32, width)


def test_what_is_overwritten_never_goes_to_memory() -> None:
    memory = Memory()
    assert memory.registers.set("t", at(4), vector("%a"))
    assert memory.registers.set("t", at(4), vector("%b"))
    assert memory.registers.get("t", at(4), 4) == vector("%b") and memory.stored == []
    memory.registers.join()
    assert memory.stored == [("t", 4, "%b")]
    assert memory.registers.get("t", at(4), 4) is None


def test_a_flush_keeps_values_and_stores_them_once() -> None:
    memory = Memory()
    memory.registers.set("t", at(8), vector("%b"))
    memory.registers.set("t", at(0), vector("%a"))
    memory.registers.flush()
    memory.registers.flush()
    assert memory.stored == [("t", 0, "%a"), ("t", 8, "%b")]
    assert memory.registers.get("t", at(8), 4) == vector("%b")


def test_what_was_loaded_is_known_and_not_stored() -> None:
    memory = Memory()
    memory.registers.keep("t", at(0), vector("%a"))
    memory.registers.join()
    assert memory.stored == []


def test_a_buffer_that_goes_out_of_scope_is_not_stored() -> None:
    memory = Memory()
    memory.registers.set("t", at(0), vector("%a"))
    memory.registers.remove("t")
    memory.registers.join()
    assert memory.stored == [] and not memory.registers.holds("t")


@pytest.mark.parametrize(("form", "width"), [(at(0), 8), (at(2), 4), (Affine(0, (("i", 4),)), 4)])
def test_what_does_not_fit_finds_memory_up_to_date(form: Affine, width: int) -> None:
    """Another width, an offset between vectors, and one that is not constant."""
    memory = Memory()
    memory.registers.set("t", at(0), vector("%a"))
    assert memory.registers.get("t", form, width) is None
    assert memory.stored == [("t", 0, "%a")]
    assert not memory.registers.set("t", form, vector("%b", width))


def test_a_released_buffer_is_in_memory_alone() -> None:
    memory = Memory()
    memory.registers.set("t", at(0), vector("%a"))
    memory.registers.release("t")
    assert memory.stored == [("t", 0, "%a")]
    assert not memory.registers.set("t", at(0), vector("%b"))
    assert memory.registers.width("t") == -1
