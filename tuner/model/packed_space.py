"""PackedSpace: points of a schedule space as rows of an integer array.

A row is (sketch, position of each choice's value), padded with zeros to the widest sketch, so that
thousands of candidates are drawn, varied and compared with a few array operations.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.schedule.space import Candidate, ScheduleSpace

Rows: TypeAlias = npt.NDArray[np.int64]
"""Candidates, shape [n, 1 + choices of the widest sketch]."""
Numbers: TypeAlias = npt.NDArray[np.int64]

FAR = 1 / 3  # share of mutations that jump to any other value instead of an adjacent one


class PackedSpace:
    """The same points as a `ScheduleSpace`, with the same numbers."""

    def __init__(self, space: ScheduleSpace) -> None:
        self.space = space
        sketches = space.sketches
        width = max(len(sketch.choices) for sketch in sketches)
        self.sizes = np.ones((len(sketches), width), np.int64)  # values of each choice
        for row, sketch in enumerate(sketches):
            self.sizes[row, : len(sketch.choices)] = [len(c.values) for c in sketch.choices]
        self._strides = np.ones_like(self.sizes)
        for column in range(width - 2, -1, -1):
            self._strides[:, column] = self._strides[:, column + 1] * self.sizes[:, column + 1]
        self._first = np.cumsum([0, *(sketch.size for sketch in sketches)])[:-1].astype(np.int64)
        self._index = {sketch.name: row for row, sketch in enumerate(sketches)}
        self._open = (self.sizes > 1).sum(axis=1)

    @property
    def size(self) -> int:
        """Number of candidates."""
        return self.space.size

    def pack(self, candidates: Sequence[Candidate]) -> Rows:
        """The rows of these candidates."""
        rows = np.zeros((len(candidates), 1 + self.sizes.shape[1]), np.int64)
        for row, candidate in zip(rows, candidates, strict=True):
            row[0] = self._index[candidate.sketch]
            row[1 : 1 + len(candidate.positions)] = candidate.positions
        return rows

    def unpack(self, row: npt.NDArray[np.int64]) -> Candidate:
        """The candidate of one row."""
        sketch = self.space.sketches[int(row[0])]
        return Candidate(sketch.name, tuple(row[1 : 1 + len(sketch.choices)].tolist()))

    def numbers(self, rows: Rows) -> Numbers:
        """The candidates' numbers in the space."""
        sketch = rows[:, 0]
        within = (rows[:, 1:] * self._strides[sketch]).sum(axis=1)
        return np.asarray(self._first[sketch] + within, np.int64)

    def rows(self, numbers: Numbers) -> Rows:
        """The inverse of `numbers`."""
        sketch = np.searchsorted(self._first, numbers, side="right") - 1
        within = numbers - self._first[sketch]
        positions = within[:, None] // self._strides[sketch] % self.sizes[sketch]
        return np.concatenate([sketch[:, None], positions], axis=1)

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """Candidates drawn uniformly: first the sketch, then each choice."""
        sketch = rng.integers(len(self.sizes), size=count)
        positions = rng.integers(self.sizes[sketch])
        return np.concatenate([sketch[:, None], positions], axis=1)

    def unknown(self, known: Container[int], rng: np.random.Generator) -> Candidate | None:
        """A random candidate whose number is not in `known`, or None when there is none."""
        for number in self.numbers(self.sample(32, rng)).tolist():
            if number not in known:
                return self.space.candidate(number)
        start = int(rng.integers(self.size))  # few are unknown: the next one from a random place on
        for step in range(self.size):
            number = (start + step) % self.size
            if number not in known:
                return self.space.candidate(number)
        return None

    def mutate(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """Each row with one choice moved, mostly to an adjacent value; fixed ones are redrawn."""
        result = rows.copy()
        fixed = self._open[rows[:, 0]] == 0
        result[fixed] = self.sample(int(fixed.sum()), rng)
        moving = np.flatnonzero(~fixed)
        sizes = self.sizes[rows[moving, 0]]
        keys = np.where(sizes > 1, rng.random(sizes.shape), -1.0)
        which = keys.argmax(axis=1)
        here = np.arange(len(moving))
        size, old = sizes[here, which], rows[moving, 1 + which]
        step = np.where(rng.random(len(moving)) < 0.5, -1, 1)
        step = np.where(old == 0, 1, np.where(old == size - 1, -1, step))
        other = (old + 1 + rng.integers(np.maximum(size - 1, 1))) % size
        far = rng.random(len(moving)) < FAR
        result[moving, 1 + which] = np.where(far, other, old + step)
        return result

    def crossover(self, mothers: Rows, fathers: Rows, rng: np.random.Generator) -> Rows:
        """Children that take each choice from either parent (the mother's if sketches differ)."""
        alike = mothers[:, :1] == fathers[:, :1]
        from_father = alike & (rng.random(mothers.shape) < 0.5)
        return np.asarray(np.where(from_father, fathers, mothers), np.int64)

    def neighbours(self, row: npt.NDArray[np.int64]) -> Rows:
        """All candidates with exactly one choice at another value."""
        result = []
        for column, size in enumerate(self.sizes[row[0]]):
            for value in range(int(size)):
                if value != row[1 + column]:
                    near = row.copy()
                    near[1 + column] = value
                    result.append(near)
        return np.array(result, np.int64).reshape(-1, len(row))


def distances(rows: Rows, other: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Choices in which each row differs from `other`; many where the sketches differ."""
    differing = (rows[:, 1:] != other[1:]).sum(axis=1)
    far = rows.shape[1]
    return np.asarray(np.where(rows[:, 0] == other[0], differing, far), np.int64)
