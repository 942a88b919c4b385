"""Tokens from a decoder: the loop around a built model with a key-value cache.

    generator = tunefarm.Generator("model.tuned")
    for tokens in generator.stream([[1, 15, 7]], max_tokens=32):
        ...

A prompt is run in parts as large as the model takes, then each token by itself. The caches grow in
place (`Executable.run` with `in_place`), and are kept: a later prompt runs from the first token on
that differs from those that they hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import InputError, SettingsError, with_count
from tunefarm.compiler.runtime.execution.executable import Executable, load
from tunefarm.compiler.runtime.spec.ports import AnyArray
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.signature import dimension_text
from tunefarm.compiler.types.sizes import Dimension, Size, bounds_of

Probabilities = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn from logits; with a temperature of 0 it is the likeliest one.

    Of the `top_k` likeliest (0: all) those are kept that reach the probability `top_p` together.
    Row r of a batch draws by the seed and r, so that it does not depend on other rows.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, fits, allowed in (
            ("temperature", 0.0 <= self.temperature < np.inf, "0 (greedy) or more"),
            ("top_k", self.top_k >= 0, "0 (all tokens) or more"),
            ("top_p", 0.0 < self.top_p <= 1.0, "above 0 and at most 1"),
            ("seed", self.seed >= 0, "0 or more"),
        ):
            if not fits:
                raise SettingsError(f"{name} is {getattr(self, name)}, and must be {allowed}")

    def distribution(self, logits: npt.NDArray[Any]) -> tuple[Tokens, Probabilities]:
        """The tokens that may be drawn, the likeliest first, and the probability of each."""
        values = logits.astype(np.float64)
        count = len(values)
        if self.temperature == 0.0:
            return np.array([int(values.argmax())]), np.ones(1)
        kept: Tokens = np.arange(count)
        if 0 < self.top_k < count:
            kept = np.argpartition(values, count - self.top_k)[count - self.top_k :]
        if self.top_k or self.top_p < 1.0:
            kept = kept[np.argsort(-values[kept], kind="stable")]
        weights = np.exp((values[kept] - values[kept].max()) / self.temperature)
        shares = weights / weights.sum()
        if self.top_p < 1.0:
            end = int(np.searchsorted(np.cumsum(shares), self.top_p)) + 1
            kept, shares = kept[:end], shares[:end] / shares[:end].sum()
        return kept, shares

    def draw(self, logits: npt.NDArray[Any], random: np.random.Generator) -> int:
        """A token by its probability. Raises `InputError` for logits that are not finite."""
        if self.temperature == 0.0:
            token = int(logits.argmax())
            finite = bool(np.isfinite(logits[token]))
        else:
            kept, shares = self.distribution(logits)
            finite = bool(np.isfinite(shares).all())
            place = int(np.searchsorted(np.cumsum(shares), random.random(), side="right"))
            token = int(kept[min(place, len(kept) - 1)])
        if not finite:
            raise InputError(
                "the model's logits are not finite",
                hint="compare its outputs with another engine's: tune bench, tune verify",
            )
        return token


GREEDY = Sampling()
_RANK_OF_IDS = 2


@dataclass(frozen=True, slots=True)
class DecoderPorts:
    """What a decoder's inputs and outputs are; `caches` has the input of each cache by its output.

    `flags` are bool inputs that choose the branch with a cache. Absent inputs are "".
    """

    ids: str
    mask: str
    positions: str
    flags: tuple[str, ...]
    logits: str
    caches: Mapping[str, str]

    @staticmethod
    def of(executable: Executable) -> DecoderPorts:
        """Found by names, types and shapes. Raises `InputError` where one cannot be."""
        caches = _caches(executable)
        rest = {n: t for n, t in executable.inputs.items() if n not in caches.values()}
        mask, positions = _first(rest, "mask"), _first(rest, "position")
        flags = tuple(name for name, type in rest.items() if type.dtype is DType.BOOL)
        others = [name for name in rest if name not in (mask, positions, *flags)]
        made = {n: t for n, t in executable.outputs.items() if n not in caches and t.dtype.is_float}
        logits = _first(made, "logits") or (next(iter(made)) if len(made) == 1 else "")
        if not caches:
            raise _no_decoder(executable, "has no cache: inputs past… that are outputs present…")
        if len(others) != 1 or not rest[others[0]].dtype.is_integer:
            names = ", ".join(others) or "none"
            raise _no_decoder(executable, f"takes more or less than token ids ({names})")
        if not logits:
            raise _no_decoder(executable, f"has no output of logits among {', '.join(made)}")
        return DecoderPorts(others[0], mask, positions, flags, logits, caches)


def _no_decoder(executable: Executable, reason: str) -> InputError:
    return InputError(
        f"{executable.spec.name} cannot generate: it {reason}",
        hint="export it as a decoder with a key-value cache (text-generation-with-past)",
    )


def _first(names: Iterable[str], part: str) -> str:
    """The first name that has this part, else ""."""
    return next((name for name in names if part in name), "")


def _caches(executable: Executable) -> dict[str, str]:
    """The input of each cache by its output.

    The code says so where a run can write one over the other. Else names say the same layer and
    kind, as past_key_values.0.key and present.0.key do, and types differ in one axis at most.
    """
    types = executable.inputs
    found = {
        output: input
        for output, input in executable.in_place.items()
        if len(types[input].shape) > _RANK_OF_IDS
    }
    past = {_label(n): n for n in types if "past" in n and n not in found.values()}
    for name, after in executable.outputs.items():
        source = past.get(_label(name), "")
        if name in found or not source:
            continue
        before = types[source]
        axes = zip(before.shape, after.shape, strict=False)
        alike = (before.dtype, len(before.shape)) == (after.dtype, len(after.shape))
        if alike and sum(size != other for size, other in axes) <= 1:
            found[name] = source
    return found


def _label(name: str) -> tuple[str, ...]:
    """The numbers of a cache's name, and whether it is of keys or values."""
    kinds = re.findall(r"key|value", re.sub(r"key_values?", "", name))
    return (*re.findall(r"\d+", name), *kinds)


class Generator:
    """A decoder with its caches, which later prompts go on with. One caller at a time.

    `capacity` is the most tokens that its caches hold, `ports` what its inputs and outputs are.
    """

    def __init__(self, model: str | PathLike[str] | Executable, threads: int | None = None) -> None:
        """Load an artifact, or take one that is loaded. Raises `InputError` for no decoder."""
        self.executable = model if isinstance(model, Executable) else load(model, threads)
        self.ports = DecoderPorts.of(self.executable)
        self._lengths = _Lengths.of(self.executable, self.ports)
        self.capacity = self._lengths.capacity
        self._steps = self.executable.growing()
        self._others: dict[str, AnyArray] = {}  # caches that no run writes over
        self._count = 0  # tokens of a call that the caches are laid out for
        self._made = -1  # tokens that the last call left in the caches
        self._held: Tokens = np.empty((0, 0), np.int64)  # [batch, tokens] that the caches hold
        self._feeds: dict[str, AnyArray] = {}

    @property
    def cached(self) -> int:
        """Tokens of each row that the caches hold."""
        return int(self._held.shape[1])

    @property
    def caches(self) -> dict[str, AnyArray]:
        """Keys and values by the names of inputs."""
        return self._steps.caches | self._others

    @caches.setter
    def caches(self, caches: Mapping[str, AnyArray]) -> None:
        own = {*self.executable.in_place.values()}
        self._steps.caches = {name: cache for name, cache in caches.items() if name in own}
        self._others = {name: cache for name, cache in caches.items() if name not in own}

    @property
    def cache_bytes(self) -> int:
        """Of keys and values that a step reads."""
        return sum(cache.nbytes for cache in self.caches.values())

    def sizes_of_step(self) -> dict[str, int]:
        """The sizes of a call of one token behind those that the caches hold, by their names."""
        return self._lengths.sizes(max(1, len(self._held)), 1, self.cached)

    def empty_caches(self) -> dict[str, AnyArray]:
        """Caches without tokens, by the names of inputs, for other engines."""
        types = self.executable.inputs_at(self._lengths.sizes(self._lengths.batch[0], 1, 0))
        names = self.ports.caches.values()
        return {name: np.zeros(types[name].shape, types[name].dtype.numpy) for name in names}

    def clear(self) -> None:
        """Forget what the caches hold."""
        self._held = self._held[:, :0]

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int = 128,
        sampling: Sampling = GREEDY,
        stop: Iterable[int] = (),
    ) -> Iterator[tuple[int | None, ...]]:
        """The next token of each prompt as soon as it is known; None for one that has ended.

        A prompt ends with the first of the `stop` tokens, which is given, or after `max_tokens`.
        Raises `InputError` for prompts of different lengths, tokens that are no numbers of words,
        more prompts than the model's batch and more tokens than its caches hold.
        """
        ids = self._checked(prompts, max_tokens)
        ends = frozenset(stop)
        randoms = [np.random.default_rng([sampling.seed, row]) for row in range(len(ids))]
        running = [True] * len(ids)
        logits = self._prefill(ids)
        for number in range(max_tokens):
            drawn = [
                sampling.draw(row.astype(np.float32, copy=False), random)
                for row, random in zip(logits, randoms, strict=True)
            ]
            yield tuple(
                token if going else None for token, going in zip(drawn, running, strict=True)
            )
            running = [
                going and token not in ends for token, going in zip(drawn, running, strict=True)
            ]
            if not any(running) or number == max_tokens - 1:
                return
            logits = self._run(np.array(drawn, np.int64)[:, None])

    def _checked(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Tokens:
        """The prompts as one array, [batch, tokens]."""
        lengths = {len(prompt) for prompt in prompts}
        if 0 in lengths or not lengths:
            raise InputError("a prompt has no tokens", hint="give each at least one token")
        if len(lengths) != 1:
            raise InputError(
                f"the prompts have {sorted(lengths)} tokens, and must have equally many",
                hint="generate from prompts of other lengths one after the other",
            )
        if max_tokens < 1:
            raise InputError(f"max_tokens is {max_tokens}, and must be 1 or more")
        ids = np.array(prompts)
        words = self.executable.outputs[self.ports.logits].shape[-1]
        if ids.dtype.kind not in "iu" or ids.ndim != 2 or ids.min() < 0 or ids.max() >= words:
            raise InputError(f"token ids must be integers from 0 to {words - 1}")
        batch, count = ids.shape
        if not self._lengths.batch[0] <= batch <= self._lengths.batch[1]:
            low, high = self._lengths.batch
            raise InputError(
                f"{with_count(batch, 'prompt')} are given, and the model was built for a batch of "
                f"{low if low == high else f'{low} to {high}'}",
                hint="build it with a range for the first dimension of "
                f"{self.ports.ids}: tune build --shape "
                f"{self._lengths.symbols[0] or 'batch_size'}=1..{max(high, batch)}",
            )
        if count + max_tokens - 1 > self.capacity:
            raise InputError(
                f"{count} tokens and {max_tokens} more do not fit into the caches, which hold "
                f"{self.capacity}",
                hint="ask for fewer tokens, or build the model with a larger range for its cache: "
                f"tune build --shape {self._lengths.symbols[2] or 'NAME'}=0..2047",
            )
        return ids.astype(np.int64)

    def _prefill(self, ids: Tokens) -> AnyArray:
        """Run the prompts but for what the caches hold; the logits of the last token of each."""
        held = self._held
        if len(held) != len(ids):
            self._begin(len(ids))
        else:
            width = min(held.shape[1], ids.shape[1] - 1)
            same = (held[:, :width] == ids[:, :width]).all(axis=0)
            self._held = held[:, : int(np.append(same, False).argmin())]
        logits: AnyArray | None = None
        while (left := ids.shape[1] - self.cached) > 0:
            count = self._lengths.largest_part(left)
            logits = self._run(ids[:, self.cached : self.cached + count])
        assert logits is not None  # one token at least is never held
        return logits

    def _begin(self, batch: int) -> None:
        """Memory for a batch of this size; nothing is held."""
        self._held = np.empty((batch, 0), np.int64)
        self.caches, self._count, self._made = {}, 0, -1
        size = batch * self.capacity
        inputs = self.executable.inputs
        self._feeds = {
            name: np.ones(size, inputs[name].dtype.numpy)
            for name in (self.ports.mask, self.ports.positions, self.ports.ids)
            if name
        }
        self._store = np.empty((batch, self.capacity), np.int64)

    def _run(self, ids: Tokens) -> AnyArray:
        """Run these tokens of each row behind those that the caches hold; the last logits."""
        ports, past, (batch, count) = self.ports, self.cached, ids.shape
        if count != self._count:
            self._lay_out(batch, count)
        inputs: dict[str, AnyArray] = dict.fromkeys(ports.flags, _TRUE)
        inputs[ports.ids] = self._feed(ports.ids, batch, count)
        inputs[ports.ids][...] = ids
        if ports.positions:
            inputs[ports.positions] = self._feed(ports.positions, batch, count)
            inputs[ports.positions][...] = np.arange(past, past + count)
        if ports.mask:
            inputs[ports.mask] = self._feed(ports.mask, batch, past + count)
        if past != self._made:
            held = self.caches.items()
            self.caches = {name: self._lengths.part(name, cache, past) for name, cache in held}
        results = self._steps.run(inputs | self._others)
        found = ports.caches.items()
        self._others = {input: results[output] for output, input in found if output in results}
        self._made = past + count
        self._store[:, past : past + count] = ids
        self._held = self._store[:, : past + count]
        last: AnyArray = results[ports.logits].reshape(batch, -1, results[ports.logits].shape[-1])
        return last[:, -1]

    def _feed(self, name: str, batch: int, count: int) -> AnyArray:
        """[batch, count] at the beginning of an input's memory."""
        return self._feeds[name][: batch * count].reshape(batch, count)

    def _lay_out(self, batch: int, count: int) -> None:
        """Have the caches lie as the code for so many tokens reads them."""
        sizes, self._count = self._lengths.sizes(batch, count, self.cached), count
        held = self.caches
        if held and self.executable.lie_in_place(held, sizes):
            return
        caches = {
            name: np.zeros(type.shape, type.dtype.numpy)
            for name, type in self.executable.inputs_at(sizes).items()
            if name in self.ports.caches.values()
        }
        caches |= self.executable.empty_caches(sizes)
        for name, cache in caches.items():
            before = held.get(name)
            if before is not None and before.strides == cache.strides:
                caches[name] = before
            elif before is not None:
                cache[...] = self._lengths.part(name, before, self.cached)
            elif name not in self._lengths.axes:
                cache[...] = 0
        self.caches, self._made = caches, -1


_TRUE = np.ones(1, np.bool_)


@dataclass(frozen=True, slots=True)
class _Lengths:
    """Which sizes a decoder was built for.

    `batch` are the smallest and largest, `parts` the numbers of tokens that a call takes, `axes`
    has for each cache that grows the axis of its tokens, and `symbols` name the sizes of batch,
    tokens, past and total, where these are dynamic.
    """

    batch: tuple[int, int]
    parts: tuple[tuple[int, int], ...]
    capacity: int
    axes: Mapping[str, int]
    symbols: tuple[str, str, str, str]

    @staticmethod
    def of(executable: Executable, ports: DecoderPorts) -> _Lengths:
        """Of a decoder. Raises `InputError` where it does not take one token after a cache."""
        signature = executable.signature
        shapes = {port.name: port.shape for port in (*signature.inputs, *signature.outputs)}
        ranges = dict(signature.ranges)
        batch, tokens = shapes[ports.ids]
        parts = ranges.get(_symbol(tokens), (bounds_of(tokens),))
        if not any(low <= 1 <= high for low, high in parts):
            raise InputError(
                f"{executable.spec.name} cannot generate: it takes "
                f"{dimension_text(tokens, ranges)} tokens in a call, and not 1",
                hint="build it with a range: tune build --shape sequence_length=1..64",
            )
        total: Dimension = shapes[ports.mask][-1] if ports.mask else _MOST
        axes, past, capacity = {}, "", bounds_of(total)[1]
        for output, input in ports.caches.items():
            before, after = shapes[input], shapes[output]
            changed = [axis for axis, size in enumerate(before) if size != after[axis]]
            if changed:
                axes[input] = changed[0]
                past = _symbol(before[changed[0]]) or past
                # The last token that is drawn is not run.
                capacity = min(capacity, bounds_of(before[changed[0]])[1] + 1)
            else:
                capacity = min(capacity, bounds_of(before[-2])[1])
        names = _symbol(batch), _symbol(tokens), past, _symbol(total)
        return _Lengths(bounds_of(batch), parts, capacity, axes, names)

    def largest_part(self, count: int) -> int:
        """The most tokens that one call takes of so many."""
        return max(min(high, count) for low, high in self.parts if low <= count)

    def part(self, name: str, cache: AnyArray, past: int) -> AnyArray:
        """So many tokens of a cache; all of one that does not grow. A cache of so many tokens is
        returned itself: the executable knows where its own results are."""
        axis = self.axes.get(name)
        if axis is None or cache.shape[axis] == past:
            return cache
        return cache[(*(slice(None),) * axis, slice(past))]

    def sizes(self, batch: int, count: int, past: int) -> dict[str, int]:
        """The sizes of a call by the names of symbols."""
        given = zip(self.symbols, (batch, count, past, past + count), strict=True)
        return {name: size for name, size in given if name}


_MOST = 2**31 - 1


def _symbol(size: Dimension) -> str:
    """The name of a dimension that is a symbol, else ""."""
    symbol = size.symbol if isinstance(size, Size) else None
    return "" if symbol is None else symbol.name


def generate(
    model: str | PathLike[str] | Executable | Generator,
    prompts: Sequence[int] | Sequence[Sequence[int]],
    *,
    max_tokens: int = 128,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    stop: Iterable[int] = (),
    threads: int | None = None,
) -> list[list[int]]:
    """The tokens that a decoder writes after each prompt, a list of token ids or several of them.

    `model` is an artifact, or a `Generator`, which keeps its caches for the next call. Other
    arguments are those of `Sampling` and of `Generator.stream`, and raise what these do.
    """
    generator = model if isinstance(model, Generator) else Generator(model, threads)
    sampling = Sampling(temperature, top_k, top_p, seed)
    batch: Any = prompts
    if len(prompts) and isinstance(prompts[0], int | np.integer):
        batch = [prompts]
    found: list[list[int]] = [[] for _ in batch]
    for tokens in generator.stream(batch, max_tokens, sampling, stop):
        for row, token in zip(found, tokens, strict=True):
            if token is not None:
                row.append(token)
    return found
