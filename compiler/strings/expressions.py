"""Regular expressions as RE2 has them, and the tokens that they find in a string."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Final, TypeAlias

from tunefarm.compiler.errors import TunefarmError

Split: TypeAlias = Callable[[str], list[str]]


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
            hint="pip install google-re2",
        ) from error
    found: ModuleType = re2
    return found


_RUN_OF_CLASS: Final = re.compile(r"\[\^?(?:[A-Za-z0-9](?:-[A-Za-z0-9])?|[_ ])+\]\+")
"""One character or more of a class, such as `[a-zA-Z0-9_]+`: scikit-learn's usual tokens."""


def runs_of_class(expression: str, least: int) -> Split | None:
    """The matches of an expression that Python's own library finds as RE2 does, in a fifth of the
    time; None for any other."""
    if not _RUN_OF_CLASS.fullmatch(expression):
        return None
    try:
        return re.compile(f"{expression[:-1]}{{{least},}}").findall
    except re.error:
        return None


def matches(expression: Expression, least: int) -> Split:
    """The matches of an expression; one that is too short is looked for again behind its first
    character."""

    def split(text: str) -> list[str]:
        data, tokens, start = text.encode(), list[str](), 0
        if least == 1:
            return [token.decode() for token in expression.parts(data)]
        while found := expression.search(data, start):
            begin, end = found
            token = data[begin:end].decode()
            if len(token) >= least:
                tokens.append(token)
                start = end
            else:
                start = _behind(data, begin)
        return tokens

    return split


def between(separators: Sequence[Expression], least: int) -> Split:
    """What is between separators, of which each divides what those before it have left."""

    def split(text: str) -> list[str]:
        row = [text.encode()]
        for separator in separators:
            row = [token for piece in row for token in _divided(separator, piece, least)]
        return [token.decode() for token in row]

    return split


def _divided(separator: Expression, data: bytes, least: int) -> list[bytes]:
    """A match without characters ends a token, and takes the character behind it away."""
    tokens, start = [], 0
    while found := separator.search(data, start):
        begin, end = found
        tokens.append(data[start:begin])
        start = end if end > begin else _behind(data, begin)
    tokens.append(data[start:])
    return [token for token in tokens if len(token.decode()) >= least]


def _behind(data: bytes, begin: int) -> int:
    """Where the character ends that begins there in UTF-8."""
    end = begin + 1
    while end < len(data) and data[end] & 0xC0 == 0x80:
        end += 1
    return end
