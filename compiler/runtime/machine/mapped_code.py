"""Object code linked without LLVM: into a file in memory, which is mapped and never both written to
and executed.

That is all that a model's own code needs, and it takes a hundredth of the time in which LLVM is
imported. A process that may not run what it has written to memory (MemoryDenyWriteExecute) may map
a file. Only what the code generator makes is linked: relocatable ELF objects for x86-64 whose
references are relative (System V ABI, AMD64 supplement, 4.4). Whatever else there is, is refused,
and LLVM links it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

_HEADER = struct.Struct("<4sBB10xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")
_RELOCATABLE_X86_64 = (b"\x7fELF", 2, 1, 1, 62)  # magic, class, byte order, type, machine
_PROGBITS, _SYMTAB, _RELA, _NOBITS, _UNWIND = 1, 2, 4, 8, 0x70000001  # types of sections
_WRITE, _ALLOC, _TLS = 0x1, 0x2, 0x400  # their flags
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2  # sections of symbols that are in none
_LOCAL, _WEAK = 0, 2  # bindings of symbols
_ABS64, _PC32, _PLT32, _PC64 = 1, 2, 4, 24  # types of references
_GOT = (9, 41, 42)  # those to where an address is kept: GOTPCREL, GOTPCRELX, REX_GOTPCRELX
_LINE = 64
"""Bytes of a cache line, at which each section starts: how loops lie in lines changes their speed,
and is the same wherever an object is linked."""
_STUB = struct.Struct("<Q8s")
_JUMP = b"\xff\x25\xf2\xff\xff\xff\x90\x90"  # jmp to the address in the 8 bytes before it
_PRESENT_FIXED = 0x02 | 0x10 | 0x8000
"""MAP_PRIVATE, MAP_FIXED, MAP_POPULATE: the first call of code makes no page fault."""
_RESERVED = 0x02 | 0x20 | 0x4000  # MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE
_NOTHING, _READ, _READ_WRITE, _READ_EXECUTE = 0, 1, 3, 5  # protections of memory


class NotMappableError(Exception):
    """The objects, or this system, have what only LLVM can link."""


class _Symbol(NamedTuple):
    name: str
    binding: int
    section: int
    value: int


class _Section(NamedTuple):
    type: int
    flags: int
    offset: int
    bytes: int
    alignment: int


class _Reference(NamedTuple):
    """What is written `offset` bytes from the start of a section: where the symbol `to` is."""

    section: int
    offset: int
    kind: int
    to: int
    addend: int


class _Object:
    """A relocatable object: its sections that are loaded, by number, and what refers to what.

    `places` are where its sections come to lie, in bytes from the start of the image.
    """

    def __init__(self, code: bytes) -> None:
        """Raises `NotMappableError` for any other file."""
        self.code = code
        self.sections: dict[int, _Section] = {}
        self.symbols: list[_Symbol] = []
        self.references: list[_Reference] = []
        self.places: dict[int, int] = {}
        try:
            self._parse()
        except (struct.error, IndexError, OverflowError, ValueError) as error:
            raise NotMappableError(f"it is damaged: {error}") from error

    def _parse(self) -> None:
        code = self.code
        magic, width, order, kind, machine, *_, start, _, _, _, _, size, count, _ = (
            _HEADER.unpack_from(code)
        )
        if (magic, width, order, kind, machine) != _RELOCATABLE_X86_64:
            raise NotMappableError("it is no relocatable object for x86-64")
        headers = [_SECTION.unpack_from(code, start + size * number) for number in range(count)]
        for number, (_, type, flags, _, offset, bytes, link, _, alignment, _) in enumerate(headers):
            if flags & _ALLOC and type != _UNWIND and bytes:
                if type not in (_PROGBITS, _NOBITS) or flags & _TLS:
                    raise NotMappableError(f"it has a section of type {type}, flags {flags}")
                self.sections[number] = _Section(type, flags, offset, bytes, alignment or 1)
            if type == _SYMTAB:
                self.symbols += _symbols(code[offset : offset + bytes], code, headers[link][4])
        for _, type, _, _, offset, bytes, _, target, _, _ in headers:
            if type == _RELA and target in self.sections:
                entries = _RELOCATION.iter_unpack(code[offset : offset + bytes])
                self.references += [_Reference(target, *entry) for entry in entries]


def defines(code: bytes, symbol: str) -> bool:
    """Whether an ELF object has a function of that name that others can call."""
    try:
        symbols = _Object(code).symbols
    except NotMappableError:
        return False
    return any(s.name == symbol and s.section and s.binding != _LOCAL for s in symbols)


def _symbols(table: bytes, code: bytes, strings: int) -> Iterator[_Symbol]:
    for name, info, _, section, value, _ in _SYMBOL.iter_unpack(table):
        start = strings + name
        text = code[start : code.index(0, start)].decode("ascii", "replace")
        yield _Symbol(text, info >> 4, section, value)


class _Image:
    """Objects side by side: what is only read or run, the jumps to other code, then what is
    written to, from a page on."""

    def __init__(self, objects: Sequence[_Object], imported: Mapping[str, int]) -> None:
        self._objects, self._imported = objects, imported
        end = self._place_sections(0, writeable=False)
        self._globals = self._defined()
        kept = {
            parsed.symbols[to].name
            for parsed in objects
            for _, _, kind, to, _ in parsed.references
            if kind in _GOT or (kind == _PLT32 and parsed.symbols[to].section == _UNDEFINED)
        }
        first = _aligned(end, _STUB.size)
        self._stubs = {name: first + _STUB.size * n for n, name in enumerate(sorted(kept))}
        self.read_only = _aligned(first + _STUB.size * len(kept), mmap.PAGESIZE)
        self.size = _aligned(self._place_sections(self.read_only, writeable=True), mmap.PAGESIZE)

    def _place_sections(self, end: int, *, writeable: bool) -> int:
        """Put those that are written to, or the others, behind `end`; where they end."""
        for parsed in self._objects:
            for number, section in parsed.sections.items():
                if bool(section.flags & _WRITE) == writeable:
                    parsed.places[number] = _aligned(end, max(section.alignment, _LINE))
                    end = parsed.places[number] + section.bytes
        return end

    def _defined(self) -> dict[str, tuple[_Object, _Symbol]]:
        """What the objects define for each other; of several that are weak the first."""
        found: dict[str, tuple[_Object, _Symbol]] = {}
        for parsed in self._objects:
            for symbol in parsed.symbols:
                if symbol.binding == _LOCAL or symbol.section == _UNDEFINED:
                    continue
                if symbol.section in (_ABSOLUTE, _COMMON):
                    raise NotMappableError(f"{symbol.name} is in no section")
                before = found.get(symbol.name)
                if before is None or (before[1].binding == _WEAK != symbol.binding):
                    found[symbol.name] = (parsed, symbol)
                elif symbol.binding != _WEAK:
                    raise NotMappableError(f"{symbol.name} is defined twice")
        return found

    def place(self, name: str) -> int:
        """Where a symbol is, in bytes from the start. Raises `NotMappableError` without it."""
        if name not in self._globals:
            raise NotMappableError(f"{name} is not defined")
        return self._within(*self._globals[name])

    @staticmethod
    def _within(parsed: _Object, symbol: _Symbol) -> int:
        if symbol.section not in parsed.places:
            raise NotMappableError(f"{symbol.name} is in a section that is not loaded")
        return parsed.places[symbol.section] + symbol.value

    def linked(self, base: int) -> bytearray:
        """Its bytes when they lie at `base`."""
        content = bytearray(self.size)
        for parsed in self._objects:
            for number, start in parsed.places.items():
                type, _, offset, bytes, _ = parsed.sections[number]
                if type == _PROGBITS:
                    content[start : start + bytes] = parsed.code[offset : offset + bytes]
        for name, place in self._stubs.items():
            address = base + self.place(name) if name in self._globals else self._outside(name)
            _STUB.pack_into(content, place, address, _JUMP)
        for parsed in self._objects:
            for reference in parsed.references:
                self._refer(content, base, parsed, reference)
        return content

    def _outside(self, name: str) -> int:
        return self._imported.get(name) or _address_in_process(name)

    def _refer(self, content: bytearray, base: int, parsed: _Object, reference: _Reference) -> None:
        section, offset, kind, to, addend = reference
        symbol, here = parsed.symbols[to], parsed.places[section] + offset
        if kind in _GOT:
            target = self._stubs[symbol.name]
        elif symbol.section != _UNDEFINED and symbol.binding == _LOCAL:
            target = self._within(parsed, symbol)
        elif symbol.name in self._globals:
            target = self.place(symbol.name)
        elif kind == _PLT32:
            target = self._stubs[symbol.name] + 8
        elif kind == _ABS64:
            target = self._outside(symbol.name) - base
        else:
            raise NotMappableError(f"a reference of type {kind} to {symbol.name}")
        if kind == _ABS64:
            struct.pack_into("<Q", content, here, (base + target + addend) % 2**64)
        elif kind == _PC64:
            struct.pack_into("<q", content, here, target + addend - here)
        elif kind in (_PC32, _PLT32, *_GOT):
            struct.pack_into("<i", content, here, target + addend - here)
        else:
            raise NotMappableError(f"a reference of type {kind} to {symbol.name}")


def _aligned(number: int, to: int) -> int:
    return -(-number // to) * to


class MappedCode:
    """Object code in this process; its addresses are valid while this lives."""

    def __init__(
        self,
        objects: Iterable[bytes],
        symbols: Iterable[str],
        imported: Mapping[str, int] | None = None,
    ) -> None:
        """Link `objects` with each other and this process; find the addresses of `symbols`.

        `imported` are addresses of symbols that are defined in none of them. Raises
        `NotMappableError` for what LLVM has to link, or may say the error of.
        """
        if sys.platform != "linux" or platform.machine() != "x86_64":
            raise NotMappableError("only Linux on x86-64 is known here")
        try:
            image = _Image([_Object(code) for code in objects], imported or {})
            places = {symbol: image.place(symbol) for symbol in symbols}
            base = _mapped(image)
        except (struct.error, IndexError, MemoryError, OverflowError, ZeroDivisionError) as error:
            raise NotMappableError(f"an object is damaged: {error}") from error
        self._addresses = {symbol: base + place for symbol, place in places.items()}
        # Its threads may still run when the process ends: nothing is unmapped then.
        weakref.finalize(self, _library().munmap, base, image.size).atexit = False

    def address(self, symbol: str) -> int:
        """The address of one of the symbols asked for."""
        return self._addresses[symbol]


def _mapped(image: _Image) -> int:
    """Where an image is from now on."""
    library = _library()
    base = library.mmap(None, image.size, _NOTHING, _RESERVED, -1, 0)
    if base == _FAILED:
        raise NotMappableError("there is no room for it")
    try:
        file = os.memfd_create("tunefarm-code")
        try:
            _fill(file, image.linked(base))
            _place(file, base, image.read_only, _READ_EXECUTE, 0)
            end, rest = base + image.read_only, image.size - image.read_only
            _place(file, end, rest, _READ_WRITE, image.read_only)
        finally:
            os.close(file)
    except OSError as error:
        library.munmap(base, image.size)
        raise NotMappableError(str(error)) from error
    except BaseException:
        library.munmap(base, image.size)
        raise
    return int(base)


def _fill(file: int, content: bytearray) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def _place(file: int, address: int, size: int, protection: int, offset: int) -> None:
    if size and _library().mmap(address, size, protection, _PRESENT_FIXED, file, offset) == _FAILED:
        raise OSError(ctypes.get_errno(), "a file in memory cannot be mapped")


_FAILED = ctypes.c_void_p(-1).value


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library


def _address_in_process(name: str) -> int:
    """Where a function of this process's libraries is."""
    try:
        function = getattr(_library(), name)
    except AttributeError as error:
        raise NotMappableError(f"{name} is nowhere defined") from error
    return ctypes.cast(function, ctypes.c_void_p).value or 0
