"""Regular expressions as onnxruntime's operators have them: RE2's, with the longest match."""

from __future__ import annotations

from types import ModuleType

from tunefarm.compiler.errors import TunefarmError


class ExpressionError(ValueError):
    """An expression that RE2 refuses."""


class Expression:
    """An expression that looks for its leftmost longest match, in strings as UTF-8."""

    def __init__(self, pattern: str) -> None:
        """Raises `ExpressionError` for a pattern that RE2 refuses."""
        re2 = _library()
        options = re2.Options()
        options.longest_match, options.log_errors = True, False
        try:
            self._compiled = re2.compile(pattern.encode(), options)
        except re2.error as error:
            (reason,) = error.args
            text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            raise ExpressionError(text) from error

    def search(self, data: bytes, start: int = 0) -> tuple[int, int] | None:
        """Where the first match from `start` on begins and ends; what is before it counts for
        boundaries."""
        match = self._compiled.search(data, start) if start <= len(data) else None
        if match is None:
            return None
        begin, end = match.span()
        return begin, end

    def parts(self, data: bytes) -> list[bytes]:
        """All matches one behind the other, but for those without characters."""
        spans = (match.span() for match in self._compiled.finditer(data))
        return [data[begin:end] for begin, end in spans if begin < end]

    def matches(self, text: str) -> bool:
        """Whether the whole text is a match."""
        return self._compiled.fullmatch(text.encode()) is not None


def _library() -> ModuleType:
    try:
        import re2  # late: few models have expressions
    except ImportError as error:
        raise TunefarmError(
            "operators of strings that have regular expressions need google-re2",
            hint="install google-re2, or tunefarm-runtime[strings]",
        ) from error
    found: ModuleType = re2
    return found
