"""Regular expressions as onnxruntime's operators have them: RE2's syntax, the longest match.

RE2 with `longest_match` finds the leftmost match and of those that begin there the longest one,
which Python's `re` does not. An expression becomes an automaton (Thompson, "Regular expression
search algorithm", 1968) whose sets of states are made when a text first needs them.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

_MOST_STATES = 100_000
_MOST_REPEATS = 1000  # RE2's own limit
_LAST = 0x10FFFF
_WORD: Final = frozenset(string.ascii_letters + string.digits + "_")

Ranges: TypeAlias = tuple[tuple[int, int], ...]


class ExpressionError(ValueError):
    """An expression that RE2 refuses, or one that is not supported here."""


@dataclass(frozen=True, slots=True)
class CharacterSet:
    """Characters: those in ranges and of general categories, or all others (`negated`).

    With `folded` case does not count. `parts` are sets whose characters it has as well.
    """

    ranges: Ranges = ()
    category: str = ""
    parts: tuple[CharacterSet, ...] = ()
    negated: bool = False
    folded: frozenset[str] = frozenset()

    def __contains__(self, character: str) -> bool:
        code = ord(character)
        inside = (
            any(low <= code <= high for low, high in self.ranges)
            or bool(self.category and unicodedata.category(character).startswith(self.category))
            or bool(self.folded and fold(character) in self.folded)
            or any(character in part for part in self.parts)
        )
        return inside != self.negated


def fold(character: str) -> str:
    """What characters that differ in case alone have in common: Unicode's simple case folding."""
    folded = character.casefold()
    if len(folded) > 1:
        folded = character.lower()
    return folded if len(folded) == 1 else character


def _ranges(*texts: str) -> Ranges:
    """Ranges from texts such as "az" and single characters."""
    return tuple((ord(text[0]), ord(text[-1])) for text in texts)


_PERL: Final = {
    "d": _ranges("09"),
    "s": _ranges("\t\n", "\f\r", " "),
    "w": _ranges("09", "AZ", "__", "az"),
}
_POSIX: Final = {
    "alnum": _ranges("09", "AZ", "az"),
    "alpha": _ranges("AZ", "az"),
    "ascii": _ranges("\0\x7f"),
    "blank": _ranges("\t", " "),
    "cntrl": _ranges("\0\x1f", "\x7f"),
    "digit": _ranges("09"),
    "graph": _ranges("!~"),
    "lower": _ranges("az"),
    "print": _ranges(" ~"),
    "punct": _ranges("!/", ":@", "[`", "{~"),
    "space": _ranges("\t\r", " "),
    "upper": _ranges("AZ"),
    "word": _ranges("09", "AZ", "__", "az"),
    "xdigit": _ranges("09", "AF", "af"),
}
_ESCAPES: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CATEGORIES: Final = frozenset(
    "C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So "
    "Z Zl Zp Zs".split()
)

# What an assertion asks of the kinds of the characters before and behind a position.
_EDGE, _NEWLINE, _IN_WORD, _OTHER = range(4)
Assertion: TypeAlias = Callable[[int, int], bool]
_ASSERTIONS: Final[dict[str, Assertion]] = {
    "begin": lambda before, after: before == _EDGE,
    "end": lambda before, after: after == _EDGE,
    "begin of line": lambda before, after: before in (_EDGE, _NEWLINE),
    "end of line": lambda before, after: after in (_EDGE, _NEWLINE),
    "boundary": lambda before, after: (before == _IN_WORD) != (after == _IN_WORD),
    "no boundary": lambda before, after: (before == _IN_WORD) == (after == _IN_WORD),
}


# --- the tree -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sequence:
    items: tuple[_Tree, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    items: tuple[_Tree, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    item: _Tree
    least: int
    most: int | None


_Tree: TypeAlias = CharacterSet | str | _Sequence | _Choice | _Repeat
"""A string is the name of an assertion."""


@dataclass(frozen=True, slots=True)
class _Flags:
    i: bool = False
    m: bool = False
    s: bool = False
    U: bool = False


class _Parser:
    """RE2's grammar. What it does not have either (backreferences, looking around) is refused."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0

    def parse(self) -> _Tree:
        tree = self._choice(_Flags())
        if self._at < len(self._text):
            raise ExpressionError("it has a ')' without '('")
        return tree

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        found = self._peek(text)
        self._at += len(text) if found else 0
        return found

    def _next(self, what: str = "it ends too soon") -> str:
        if self._at >= len(self._text):
            raise ExpressionError(what)
        self._at += 1
        return self._text[self._at - 1]

    def _until(self, end: str) -> str:
        stop = self._text.find(end, self._at)
        if stop < 0:
            raise ExpressionError(f"it has no {end!r} where one must be")
        found, self._at = self._text[self._at : stop], stop + len(end)
        return found

    def _choice(self, flags: _Flags) -> _Tree:
        self._depth += 1
        if self._depth > 100:
            raise ExpressionError("its groups are nested more than 100 deep")
        choices, items = [], list[_Tree]()
        while self._at < len(self._text) and not self._peek(")"):
            if self._take("|"):
                choices.append(_Sequence(tuple(items)))
                items = []
            elif self._take("("):
                flags = self._group(flags, items)
            else:
                self._item(flags, items)
        self._depth -= 1
        choices.append(_Sequence(tuple(items)))
        return choices[0] if len(choices) == 1 else _Choice(tuple(choices))

    def _group(self, flags: _Flags, items: list[_Tree]) -> _Flags:
        """Append what is in a group; the flags that hold behind it."""
        inner = flags
        if self._take("?"):
            if self._take("P<") or (self._peek("<") and self._text[self._at + 1 :][:1].isalpha()):
                self._take("<")
                name = self._until(">")
                if not name or not set(name) <= _WORD:
                    raise ExpressionError(f"a group has the name {name!r}")
            else:
                inner = self._flags(flags)
                if self._text[self._at - 1] == ")":
                    return inner
        items.append(self._choice(inner))
        if not self._take(")"):
            raise ExpressionError("a ')' is missing")
        return flags

    def _flags(self, flags: _Flags) -> _Flags:
        value, some = True, False
        while (letter := self._next("a ')' is missing")) not in ":)":
            if letter == "-" and value:
                value, some = False, False
            elif letter in "imsU":
                flags, some = replace(flags, **{letter: value}), True
            else:
                raise ExpressionError(f"'(?{letter}' is not supported")
        if not value and not some:
            raise ExpressionError("'(?-' names no flag")
        return flags

    def _item(self, flags: _Flags, items: list[_Tree]) -> None:
        character = self._next()
        if character in "*+?":
            self._repeat(items, *{"*": (0, None), "+": (1, None), "?": (0, 1)}[character])
        elif character == "{" and (bounds := self._bounds()):
            self._repeat(items, *bounds)
        elif character == "[":
            items.append(self._class(flags))
        elif character == ".":
            items.append(CharacterSet(() if flags.s else _ranges("\n"), negated=True))
        elif character in "^$":
            edge = "begin" if character == "^" else "end"
            items.append(f"{edge} of line" if flags.m else edge)
        elif character == "\\":
            self._escape(flags, items)
        else:
            items.append(_of_character(character, flags))

    def _repeat(self, items: list[_Tree], least: int, most: int | None) -> None:
        if not items:
            raise ExpressionError("a repetition has nothing to repeat")
        self._take("?")  # the longest match is looked for in any case
        at, again = self._at, self._text[self._at : self._at + 1]
        if (again and again in "*+?") or (self._take("{") and self._bounds()):
            raise ExpressionError("a repetition is repeated")
        self._at = at
        items[-1] = _Repeat(items[-1], least, most)

    def _bounds(self) -> tuple[int, int | None] | None:
        """What stands behind a brace, if that is a repetition."""
        stop = self._text.find("}", self._at)
        low, comma, high = self._text[self._at : max(stop, self._at)].partition(",")
        if not (low.isascii() and low.isdigit()) or (high and not high.isdigit()):
            return None
        self._at = stop + 1
        least, most = int(low), int(high) if high else None if comma else int(low)
        if max(least, most or 0) > _MOST_REPEATS or (most is not None and most < least):
            raise ExpressionError(f"it repeats {{{low}{comma}{high}}}")
        return least, most

    def _escape(self, flags: _Flags, items: list[_Tree]) -> None:
        character = self._next("it ends in a backslash")
        assertion = {"A": "begin", "z": "end", "b": "boundary", "B": "no boundary"}.get(character)
        if assertion:
            items.append(assertion)
        elif character == "Q":
            stop = self._text.find("\\E", self._at)
            quoted = self._text[self._at : stop if stop >= 0 else None]
            items += [_of_character(each, flags) for each in quoted]
            self._at += len(quoted) + (2 if stop >= 0 else 0)
        else:
            known = self._named_set(character, flags)
            items.append(known or _of_character(self._escaped(character), flags))

    def _named_set(self, letter: str, flags: _Flags) -> CharacterSet | None:
        """`\\d`, `\\pL`, `\\p{Lu}` and so on."""
        if letter.lower() in _PERL:
            known = _folded(CharacterSet(_PERL[letter.lower()]), flags)
            return replace(known, negated=letter.isupper())
        if letter not in "pP":
            return None
        name = self._next()
        if name == "{":
            name = self._until("}")
        negated = (letter == "P") != name.startswith("^")
        name = name.removeprefix("^")
        if name == "Any":
            return CharacterSet(((0, _LAST),), negated=negated)
        if name not in _CATEGORIES:
            raise ExpressionError(f"the class \\p{{{name}}} is not supported")
        if flags.i and name[0] == "L":
            raise ExpressionError(f"the class \\p{{{name}}} without case is not supported")
        return CharacterSet(category=name, negated=negated)

    def _escaped(self, character: str) -> str:
        """The character that an escape stands for."""
        if character in _ESCAPES:
            return _ESCAPES[character]
        if character in string.punctuation:
            return character
        if character in "01234567":
            digits = character
            while len(digits) < 3 and self._text[self._at : self._at + 1] in tuple("01234567"):
                digits += self._next()
            if character == "0" or len(digits) > 1:
                return chr(int(digits, 8))
        if character == "x":
            wide = self._take("{")
            digits = self._until("}") if wide else self._next() + self._next()
            if digits and set(digits) <= set(string.hexdigits) and int(digits, 16) <= _LAST:
                return chr(int(digits, 16))
        raise ExpressionError(f"the escape \\{character} is not supported")

    def _class(self, flags: _Flags) -> CharacterSet:
        negated, first = self._take("^"), True
        ranges, parts = list[tuple[int, int]](), list[CharacterSet]()
        while first or not self._peek("]"):
            first = False
            if self._take("[:"):
                parts.append(_posix(self._until(":]")))
                continue
            low = self._next("a ']' is missing")
            if low == "\\":
                low = self._next()
                known = self._named_set(low, flags)
                if known is not None:
                    parts.append(known)
                    continue
                low = self._escaped(low)
            high = low
            if self._peek("-") and not self._peek("-]"):
                self._take("-")
                high = self._next("a ']' is missing")
                high = self._escaped(self._next()) if high == "\\" else high
            if high < low:
                raise ExpressionError(f"it has the range {low}-{high}")
            ranges.append((ord(low), ord(high)))
        self._take("]")
        parts = [_folded(part, flags) for part in parts]
        known = _folded(CharacterSet(tuple(ranges)), flags)
        return replace(known, parts=tuple(parts), negated=negated)


def _of_character(character: str, flags: _Flags) -> CharacterSet:
    return _folded(CharacterSet(_ranges(character)), flags)


def _posix(name: str) -> CharacterSet:
    known = _POSIX.get(name.removeprefix("^"))
    if known is None:
        raise ExpressionError(f"the class [:{name}:] does not exist")
    return CharacterSet(known, negated=name.startswith("^"))


def _folded(known: CharacterSet, flags: _Flags) -> CharacterSet:
    """The same characters, of any case where flags say so."""
    if not flags.i:
        return known
    codes = (code for low, high in known.ranges for code in range(low, high + 1))
    return replace(known, folded=frozenset(fold(chr(code)) for code in codes))


# --- what Python finds as well --------------------------------------------------------------------

_AS_PYTHON: Final = {"begin": r"\A", "end": r"\Z", "boundary": r"\b"}  # \B differs in ""


def _simple(tree: _Tree) -> re.Pattern[str] | None:
    """The same expression for `re`, which is faster, where both find the same match.

    They do where one thing at most is repeated, and that is of single characters: how often it is
    says alone how long a match is, and `re` tries the most first.
    """
    parts = _as_python(tree)
    if parts is None or sum(part.endswith("}") for part in parts) > 1:
        return None
    return re.compile("".join(parts), re.ASCII)


def _as_python(tree: _Tree) -> list[str] | None:
    """The parts of an expression one behind the other; None for what is more than that."""
    if isinstance(tree, str):
        return [_AS_PYTHON[tree]] if tree in _AS_PYTHON else None
    if isinstance(tree, CharacterSet):
        return _set_as_python(tree)
    if isinstance(tree, _Repeat) and isinstance(tree.item, CharacterSet):
        item = _set_as_python(tree.item)
        most = "" if tree.most is None else tree.most
        return item and [f"{item[0]}{{{tree.least},{most}}}"]
    if not isinstance(tree, _Sequence):
        return None
    found = list[str]()
    for item_tree in tree.items:
        parts = _as_python(item_tree)
        if parts is None:
            return None
        found += parts
    return found


def _set_as_python(known: CharacterSet) -> list[str] | None:
    sets = [known, *known.parts]
    if any(each.category or each.folded for each in sets) or any(
        part.negated or part.parts for part in known.parts
    ):
        return None
    ranges = [f"\\U{low:08x}-\\U{high:08x}" for each in sets for low, high in each.ranges]
    return [f"[{'^' if known.negated else ''}{''.join(ranges)}]"] if ranges else None


# --- the automaton ------------------------------------------------------------------------------

_States: TypeAlias = frozenset[int]


class _Place(dict[str, "tuple[bool, _Place | None]"]):
    """States that a match may be in behind a character of a kind.

    By the next character, "" where the text ends: whether a match ends here, and the place behind
    that character, None where no match goes on.
    """

    def __init__(self, expression: Expression, states: _States, before: int) -> None:
        super().__init__()
        self._expression, self._states, self._before = expression, states, before

    def __missing__(self, character: str) -> tuple[bool, _Place | None]:
        found = self[character] = self._expression.step(self._states, self._before, character)
        return found


class Expression:
    """An expression that looks for its leftmost longest match."""

    def __init__(self, pattern: str) -> None:
        """Raises `ExpressionError` for a pattern that RE2 refuses or that is not supported."""
        self._readers: list[CharacterSet | Assertion | None] = []
        self._next: list[tuple[int, ...]] = []
        self._has_assertions = False
        self._places: dict[tuple[_States, int], _Place] = {}
        self._end = self._state(None, ())
        tree = _Parser(pattern).parse()
        self._start = frozenset([self._compiled(tree, self._end)])
        self._simple = _simple(tree)

    def search(self, text: str, start: int = 0) -> tuple[int, int] | None:
        """Where the first match from `start` on begins and ends; what is before it counts for
        boundaries."""
        if self._simple is not None:
            match = self._simple.search(text, start) if start <= len(text) else None
            return None if match is None else match.span()
        for begin in range(start, len(text) + 1):
            end = self._longest(text, begin)
            if end is not None:
                return begin, end
        return None

    def matches(self, text: str) -> bool:
        """Whether the whole text is a match."""
        place: _Place | None = self._place(self._start, "")
        for character in text:
            if place is None:
                return False
            place = place[character][1]
        return place is not None and place[""][0]

    def step(self, states: _States, before: int, character: str) -> tuple[bool, _Place | None]:
        """What is behind a character that states behind one of the kind `before` read."""
        after = _kind(character)
        seen, stack = set(states), list(states)
        following = set[int]()
        while stack:
            state = stack.pop()
            reader = self._readers[state]
            if isinstance(reader, CharacterSet):
                if character and character in reader:
                    following.update(self._next[state])
            elif reader is None or reader(before, after):
                stack += [other for other in self._next[state] if other not in seen]
                seen.update(self._next[state])
        place = self._place(frozenset(following), character) if following else None
        return self._end in seen, place

    def _place(self, states: _States, character: str) -> _Place:
        key = states, _kind(character) if self._has_assertions else _OTHER
        if key not in self._places:
            self._places[key] = _Place(self, *key)
        return self._places[key]

    def _longest(self, text: str, begin: int) -> int | None:
        """Where the longest match that begins here ends."""
        found = None
        place = self._place(self._start, text[begin - 1 : begin] if begin else "")
        for number in range(begin, len(text)):
            is_end, following = place[text[number]]
            if is_end:
                found = number
            if following is None:
                return found
            place = following
        return len(text) if place[""][0] else found

    def _state(self, reader: CharacterSet | Assertion | None, following: tuple[int, ...]) -> int:
        if len(self._next) >= _MOST_STATES:
            raise ExpressionError("it is too large")
        self._readers.append(reader)
        self._next.append(following)
        return len(self._next) - 1

    def _compiled(self, tree: _Tree, following: int) -> int:
        """The state that a tree begins in, which goes on to `following`."""
        if isinstance(tree, CharacterSet):
            return self._state(tree, (following,))
        if isinstance(tree, str):
            self._has_assertions = True
            return self._state(_ASSERTIONS[tree], (following,))
        if isinstance(tree, _Choice):
            return self._state(None, tuple(self._compiled(item, following) for item in tree.items))
        if isinstance(tree, _Sequence):
            for item in reversed(tree.items):
                following = self._compiled(item, following)
            return following
        return self._repeated(tree, following)

    def _repeated(self, tree: _Repeat, following: int) -> int:
        if tree.most is None:
            loop = self._state(None, ())
            self._next[loop] = (self._compiled(tree.item, loop), following)
            following = loop
        else:
            end = following
            for _ in range(tree.most - tree.least):
                following = self._state(None, (self._compiled(tree.item, following), end))
        for _ in range(tree.least):
            following = self._compiled(tree.item, following)
        return following


def _kind(character: str) -> int:
    """What assertions ask of a character, "" at an end of the text."""
    if not character:
        return _EDGE
    return _IN_WORD if character in _WORD else _NEWLINE if character == "\n" else _OTHER
