"""Attention as models spell it out, and rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tests.benchmarks.operator_cases.case import CaseBuilder, OperatorCase, shape_text


@dataclass(frozen=True, slots=True)
class _Attention:
    """Queries of `heads` x `queries` x `width` against `keys` keys of `key_heads` heads."""

    name: str
    heads: int
    queries: int
    keys: int
    width: int
    key_heads: int = 0
    mask: str = ""  # "causal", "added" or "where"
    scaled: bool = True
    cache: bool = False  # the last `queries` keys are joined to those before
    transposes: bool = False  # from and to batch x tokens x (heads x width)

    def case(self) -> OperatorCase:
        return OperatorCase("attention", f"attention {self.name}: {self._shapes()}", self.write)

    def _shapes(self) -> str:
        keys = f"{self.key_heads or self.heads}x{self.keys}x{self.width}"
        return f"{self.heads}x{self.queries}x{self.width} by {keys}"

    def write(self, net: CaseBuilder) -> str:
        queries = self._input(net, self.heads, self.queries)
        keys, values = self._keys(net), self._keys(net)
        scores = net.node("MatMul", queries, net.node("Transpose", keys, perm=[0, 1, 3, 2]))
        if self.scaled:
            scores = net.node("Mul", scores, net.constant(1.0 / math.sqrt(self.width)))
        weights = net.node("Softmax", self._masked(net, scores), axis=-1)
        result = net.node("MatMul", weights, values)
        if not self.transposes:
            return result
        tokens = net.node("Transpose", result, perm=[0, 2, 1, 3])
        flat = net.constant(np.array([1, self.queries, self.heads * self.width]))
        return net.node("Reshape", tokens, flat)

    def _input(self, net: CaseBuilder, heads: int, tokens: int) -> str:
        if not self.transposes:
            return net.input(1, heads, tokens, self.width)
        flat = net.input(1, tokens, heads * self.width)
        split = net.node("Reshape", flat, net.constant(np.array([1, tokens, heads, self.width])))
        return net.node("Transpose", split, perm=[0, 2, 1, 3])

    def _keys(self, net: CaseBuilder) -> str:
        heads = self.key_heads or self.heads
        if self.cache:
            past = net.input(1, heads, self.keys - self.queries, self.width)
            keys = net.node("Concat", past, self._input(net, heads, self.queries), axis=2)
        else:
            keys = self._input(net, heads, self.keys)
        if heads == self.heads:
            return keys
        groups = self.heads // heads
        apart = net.node("Unsqueeze", keys, net.constant(np.array([2])))
        wide = net.constant(np.array([1, heads, groups, self.keys, self.width]))
        joined = net.constant(np.array([1, self.heads, self.keys, self.width]))
        return net.node("Reshape", net.node("Expand", apart, wide), joined)

    def _masked(self, net: CaseBuilder, scores: str) -> str:
        if not self.mask:
            return scores
        if self.mask == "where":
            allowed = net.mask(1, 1, self.queries, self.keys)
            return net.node("Where", allowed, scores, net.constant(-1e9))
        if self.mask == "added":
            return net.node("Add", scores, net.input(1, 1, 1, self.keys))
        before = np.tril(np.ones((self.queries, self.keys)), self.keys - self.queries)
        return net.node("Add", scores, net.constant(np.where(before > 0, 0.0, -1e9)[None, None]))


_ATTENTIONS = (
    _Attention("", 8, 1024, 1024, 64),
    _Attention("encoder", 12, 128, 128, 64),
    _Attention("encoder with mask", 12, 128, 128, 64, mask="added", transposes=True),
    _Attention("ViT", 6, 197, 197, 64, transposes=True),
    _Attention("unscaled odd", 3, 113, 71, 40, scaled=False),
    _Attention("causal", 8, 512, 512, 64, mask="causal"),
    _Attention("where", 4, 256, 256, 32, mask="where"),
    _Attention("grouped causal", 16, 128, 128, 64, key_heads=4, mask="causal"),
    _Attention("decode one token", 16, 1, 512, 64, cache=True),
    _Attention("decode one token grouped", 16, 1, 512, 64, key_heads=4, cache=True),
    _Attention("windows", 64, 49, 49, 32),
)


def cases() -> Iterator[OperatorCase]:
    """All cases of the file."""
    for attention in _ATTENTIONS:
        yield attention.case()
    for shape in ((12, 128, 64), (8, 1, 128)):
        name = f"rotary halves: {shape_text(shape)}"
        yield OperatorCase("rotary", name, partial(_rotary_halves, *shape))
    yield OperatorCase("rotary", "rotary pairs: 12x128x64", _rotary_pairs)
    yield OperatorCase("rotary", "rotary with angles: 12x128x64", _rotary_angles)
    yield OperatorCase("rotary", "rotary of a quarter: 12x128x64", _rotary_of_a_quarter)
    yield OperatorCase("rotary", "rotary halves joined: 12x128x64", _rotary_halves_joined)
    yield OperatorCase("rotary", "rotary pairs in columns: 128x12x64", _rotary_columns)
    yield OperatorCase("rotary", "rotary neighbours: 128x16x256", _rotary_neighbours)
    yield OperatorCase("rotary", "rotary behind a transpose: 12x128x64", _rotary_of_heads)


def _rotary_halves(heads: int, tokens: int, width: int, net: CaseBuilder) -> str:
    tables = [net.input(1, 1, tokens, width) for _ in range(2)]
    return _halves_turned(net, net.input(1, heads, tokens, width), width, tables)


def _halves_turned(net: CaseBuilder, data: str, width: int, tables: Sequence[str]) -> str:
    first, last = (_features(net, data, *part) for part in ((0, width // 2), (width // 2, width)))
    turned = net.node("Concat", net.node("Neg", last), first, axis=-1)
    return net.node("Add", net.node("Mul", data, tables[0]), net.node("Mul", turned, tables[1]))


def _features(net: CaseBuilder, data: str, start: int, end: int, step: int = 1) -> str:
    bounds = (net.constant(np.array([number])) for number in (start, end, 3, step))
    return net.node("Slice", data, *bounds)


def _pair_turned(net: CaseBuilder, pair: Sequence[str], tables: Sequence[str]) -> tuple[str, str]:
    (a, b), (cosine, sine) = pair, tables
    left = net.node("Sub", net.node("Mul", a, cosine), net.node("Mul", b, sine))
    return left, net.node("Add", net.node("Mul", a, sine), net.node("Mul", b, cosine))


def _side_by_side(net: CaseBuilder, pair: Sequence[str], *shape: int) -> str:
    columns = [net.node("Unsqueeze", half, net.constant(np.array([4]))) for half in pair]
    joined = net.node("Concat", *columns, axis=-1)
    return net.node("Reshape", joined, net.constant(np.array(shape)))


def _rotary_pairs(net: CaseBuilder) -> str:
    data = net.input(1, 12, 128, 64)
    pair = [_features(net, data, first, 64, 2) for first in (0, 1)]
    tables = [net.input(1, 1, 128, 32) for _ in range(2)]
    return _side_by_side(net, _pair_turned(net, pair, tables), 1, 12, 128, 64)


def _rotary_of_a_quarter(net: CaseBuilder) -> str:
    """As GPT-NeoX has it."""
    data = net.input(1, 12, 128, 64)
    tables = [net.input(1, 1, 128, 16) for _ in range(2)]
    turned = _halves_turned(net, _features(net, data, 0, 16), 16, tables)
    return net.node("Concat", turned, _features(net, data, 16, 64), axis=-1)


def _rotary_halves_joined(net: CaseBuilder) -> str:
    """Each half by itself, with one cosine and one sine a pair."""
    data = net.input(1, 12, 128, 64)
    pair = [_features(net, data, *part) for part in ((0, 32), (32, 64))]
    tables = [net.input(1, 1, 128, 32) for _ in range(2)]
    return net.node("Concat", *_pair_turned(net, pair, tables), axis=-1)


def _rotary_columns(net: CaseBuilder) -> str:
    """As LLaMA's own code has it, on real numbers."""
    data = net.node("Reshape", net.input(1, 128, 768), net.constant(np.array([1, 128, 12, 32, 2])))
    pair = [net.node("Gather", data, net.constant(np.array(at)), axis=4) for at in (0, 1)]
    tables = [net.input(128, 1, 32) for _ in range(2)]
    return _side_by_side(net, _pair_turned(net, pair, tables), 1, 128, 12, 64)


def _rotary_neighbours(net: CaseBuilder) -> str:
    """As GPT-J has it, with one cosine and one sine a feature."""
    data = net.input(1, 128, 16, 256)
    even, odd = (_features(net, data, first, 256, 2) for first in (0, 1))
    turned = _side_by_side(net, (net.node("Neg", odd), even), 1, 128, 16, 256)
    tables = [net.input(1, 128, 1, 256) for _ in range(2)]
    return net.node("Add", net.node("Mul", data, tables[0]), net.node("Mul", turned, tables[1]))


def _rotary_of_heads(net: CaseBuilder) -> str:
    apart = net.node("Reshape", net.input(1, 128, 768), net.constant(np.array([1, 128, 12, 64])))
    heads = net.node("Transpose", apart, perm=[0, 2, 1, 3])
    return _halves_turned(net, heads, 64, [net.input(1, 1, 128, 64) for _ in range(2)])


def _rotary_angles(net: CaseBuilder) -> str:
    """As exported without a cache: sine and cosine of positions times frequencies."""
    data, positions = net.input(1, 12, 128, 64), net.input(1, 1, 128, 1, low=10.0)
    halves = net.constant(1e4 ** (-np.arange(32) / 32.0))
    angles = net.node("Mul", positions, halves)
    angles = net.node("Concat", angles, angles, axis=-1)
    first, last = net.nodes("Split", 2, data, axis=-1, num_outputs=2)
    turned = net.node("Concat", net.node("Neg", last), first, axis=-1)
    left = net.node("Mul", data, net.node("Cos", angles))
    return net.node("Add", left, net.node("Mul", turned, net.node("Sin", angles)))
