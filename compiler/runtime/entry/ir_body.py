"""Lines of an LLVM function that is written as text, and fresh names for its values."""

from __future__ import annotations


class IrBody:
    """The body of one function; `str` of it is the text."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._count = 0

    def line(self, text: str) -> None:
        """Append an instruction, or a label."""
        self._lines.append(f"  {text}")

    def text(self, lines: str) -> None:
        """Append lines that are indented already."""
        self._lines.append(lines)

    def value(self, text: str) -> str:
        """Append an instruction that gives a value; its name."""
        name = f"%v{self._count}"
        self._count += 1
        self.line(f"{name} = {text}")
        return name

    def new_label(self) -> str:
        """A fresh name for a label."""
        self._count += 1
        return f"b{self._count}"

    def __str__(self) -> str:
        return "\n".join(self._lines)
