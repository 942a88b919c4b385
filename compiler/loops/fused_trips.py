"""Fused loops whose parts end at run time: one loop over as many rounds as the parts have.

parallel for p in 0..96:               let i.o.rounds = …
  let j.o = p % 12               ->    parallel for p in 0..min(96, 12 * i.o.rounds):
  let p.1 = p // 12                      let j.o = p % 12
    …                                    let p.1 = p // 12
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tunefarm.compiler.expr.nodes import Binary, Const, Expr, Index, binary, index, integer, mul
from tunefarm.compiler.loops.ir import Body, For, Let
from tunefarm.compiler.loops.size_conditions import Condition, Key, strongest


@dataclass(frozen=True, slots=True)
class _Part:
    """A loop that was fused: the variable, its static extent, and whether it is what is left."""

    variable: str
    extent: int


@dataclass(frozen=True, slots=True)
class FusedParts:
    """A fused loop with its bindings: `divided` has those of each part, innermost first."""

    loop: For
    lets: tuple[Let, ...]
    parts: tuple[_Part, ...]  # innermost first; the last one is what is left of the variable
    body: Body

    def ranges(self) -> Mapping[str, tuple[int, int]]:
        """Of the fused loop's variable and of what is bound to it."""
        found = {self.loop.variable: (0, self.loop.stop - 1)}
        size = self.loop.stop
        for part, quotient in zip(self.parts, self.lets[1::2], strict=False):
            found[part.variable] = (0, part.extent - 1)
            size //= part.extent
            found[quotient.variable] = (0, size - 1)
        return found

    def limited(self, live: Mapping[Key, Condition]) -> LimitedParts | None:
        """The parts with the conditions that end them; None where there are none."""
        names = {part.variable for part in self.parts}
        found: dict[str, list[Condition]] = {}
        for item in live.values():
            own = [name for name, _ in item.terms if name in names]
            if len(own) == 1 and item.coefficient(own[0]) > 0:
                found.setdefault(own[0], []).append(item)
        return LimitedParts(self, found) if found else None


@dataclass(frozen=True, slots=True)
class LimitedParts:
    """Fused parts of which some end at run time, by variable."""

    fused: FusedParts
    ends: Mapping[str, list[Condition]]

    @property
    def facts(self) -> dict[Key, Condition]:
        """What holds inside."""
        return {item.key: item for items in self.ends.values() for item in items}

    def needed(self) -> dict[Key, Condition]:
        """Conditions without which the loop has no round."""
        return strongest(item.at(name, 0) for name, items in self.ends.items() for item in items)

    def rebuilt(self, body: Body) -> Body:
        """The loop over the rounds that there are, round this body."""
        loop, lets = self.fused.loop, self.fused.lets
        outer: list[tuple[str, Expr]] = []
        factors: list[Expr] = []
        for part in self.fused.parts:
            rounds: Expr = integer(part.extent)
            for item in self.ends.get(part.variable, ()):
                rounds = binary("min", item.rounds(part.variable), rounds)
            if not isinstance(rounds, Const):
                name = f"{part.variable}.rounds"
                outer.append((name, binary("max", rounds, integer(0))))
                rounds = index(name)
            factors.append(rounds)
        trips = factors[0]
        for factor in factors[1:]:
            trips = mul(trips, factor)
        made, size = body, loop.stop
        sizes = []
        for part in self.fused.parts[:-1]:
            size //= part.extent
            sizes.append(size)
        for number in reversed(range(len(self.fused.parts) - 1)):
            rest, quotient = lets[2 * number : 2 * number + 2]
            made = (
                replace(
                    quotient, value=_divided(quotient, factors[number], sizes[number]), body=made
                ),
            )
            extent = self.fused.parts[number].extent
            made = (replace(rest, value=_divided(rest, factors[number], extent), body=made),)
        made = (replace(loop, limit=trips, body=made),)
        for name, value in reversed(outer):
            made = (Let(name, value, made),)
        return made


def _divided(let: Let, divisor: Expr, extent: int) -> Expr:
    """A quotient or rest by another divisor, still below the static extent."""
    assert isinstance(let.value, Binary)
    if isinstance(divisor, Const):
        return let.value
    return binary("min", binary(let.value.op, let.value.left, divisor), integer(extent - 1))


def fused_parts(loop: For) -> FusedParts | None:
    """The parts of a loop that was fused; None of any other, or where more depends on the loop."""
    if loop.start:
        return None
    lets: list[Let] = []
    parts: list[_Part] = []
    variable, body, size = loop.variable, loop.body, loop.stop
    while (pair := _division(variable, body)) is not None:
        rest, quotient, divisor = pair
        lets += [rest, quotient]
        parts.append(_Part(rest.variable, divisor))
        variable, body, size = quotient.variable, quotient.body, size // divisor
    if not parts:
        return None
    return FusedParts(loop, tuple(lets), (*parts, _Part(variable, size)), body)


def _division(variable: str, body: Body) -> tuple[Let, Let, int] | None:
    """`let rest = v % d: let quotient = v // d: …`"""
    if len(body) != 1 or not isinstance(rest := body[0], Let):
        return None
    if len(rest.body) != 1 or not isinstance(quotient := rest.body[0], Let):
        return None
    match rest.value, quotient.value:
        case (
            Binary(op="mod", left=Index(name=first), right=Const(value=divisor)),
            Binary(op="floordiv", left=Index(name=second), right=Const(value=other)),
        ) if first == second == variable and divisor == other:
            return rest, quotient, int(divisor)
    return None
