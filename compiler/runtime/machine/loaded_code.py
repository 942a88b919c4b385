"""Machine code linked into this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import llvmlite.binding as llvm

from tunefarm.compiler.errors import ArtefactError
from tunefarm.compiler.executable_memory import HINT, refusal


class LoadedCode:
    """Object code linked into this process; its addresses are valid while this lives.

    JITLink rather than MCJIT: it reports an undefined symbol instead of ending the process, and
    puts a far call's stub next to its caller, so objects and libm may lie anywhere in memory.
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
        if reason := refusal():
            raise ArtefactError(
                f"this process may not run code that it loads (mprotect: {reason})", hint=HINT
            )
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        jit = llvm.create_lljit_compiler(machine, use_jit_link=True)
        library = llvm.JITLibraryBuilder().add_current_process()
        for code in objects:
            library.add_object_img(code)
        for symbol, address in (imported or {}).items():
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
        """The address of one of the symbols asked for."""
        address: int = self._tracker[symbol]
        return address
