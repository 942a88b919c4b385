"""Machine code linked into this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from tunefarm.compiler.errors import ArtefactError
from tunefarm.compiler.machine.executable_memory import HINT, refusal
from tunefarm.compiler.runtime.machine.mapped_code import MappedCode, NotMappableError


class LinkedCode(Protocol):
    """What links code keeps it in memory, and knows where its symbols are."""

    def address(self, symbol: str) -> int:
        """The address of one of the symbols asked for."""


class LoadedCode:
    """Object code linked into this process; its addresses are valid while this lives.

    It is mapped, see `tunefarm.compiler.runtime.machine.mapped_code`, or else LLVM links it, which
    is imported only then.
    """

    def __init__(
        self,
        objects: Iterable[bytes],
        symbols: Iterable[str],
        ir: str = "",
        imported: Mapping[str, int] | None = None,
    ) -> None:
        """Link `objects` with each other and this process; find the addresses of `symbols`.

        `ir` is LLVM IR to compile for this CPU family and link as well; `imported` are addresses
        of symbols that are not defined in any of them.
        Raises `ArtefactError` when they do not link, or the process may not run what it links.
        """
        objects, symbols = tuple(objects), tuple(symbols)
        mapped = None if ir else _mapped(objects, symbols, imported)
        self._code = mapped or _JitCode(objects, symbols, ir, imported or {})

    def address(self, symbol: str) -> int:
        """The address of one of the symbols asked for."""
        return self._code.address(symbol)


def _mapped(
    objects: Sequence[bytes], symbols: Sequence[str], imported: Mapping[str, int] | None
) -> LinkedCode | None:
    """Code that needs no LLVM; None for what does."""
    try:
        return MappedCode(objects, symbols, imported)
    except NotMappableError:
        return None


class _JitCode:
    """Code that LLVM links.

    JITLink rather than MCJIT: it reports an undefined symbol instead of ending the process, and
    puts a far call's stub next to its caller, so objects and libm may lie anywhere in memory.
    """

    def __init__(
        self,
        objects: Sequence[bytes],
        symbols: Sequence[str],
        ir: str,
        imported: Mapping[str, int],
    ) -> None:
        if reason := refusal():
            raise ArtefactError(
                f"this process may not run code that it loads (mprotect: {reason})", hint=HINT
            )
        import llvmlite.binding as llvm  # 60 ms, which artifacts that are mapped go without

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        jit = llvm.create_lljit_compiler(machine, use_jit_link=True)
        library = llvm.JITLibraryBuilder().add_current_process()
        for code in objects:
            library.add_object_img(code)
        for symbol, address in imported.items():
            library.import_symbol(symbol, address)
        if ir:
            library.add_ir(ir)
        for symbol in symbols:
            library.export_symbol(symbol)
        try:
            self._tracker = library.link(jit, "model")
        except RuntimeError as error:
            raise ArtefactError(f"the model's code does not link: {error}") from error
        self._jit = jit  # set after the tracker, so that it is also destroyed after it

    def address(self, symbol: str) -> int:
        """See `LoadedCode`."""
        address: int = self._tracker[symbol]
        return address
