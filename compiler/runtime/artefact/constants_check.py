"""The check of an artifact's weights, which goes on while the model is loaded and runs first.

Code, the manifest and all constants that code may take for numbers of elements are checked before
anything of them is used. Large constants of floats and of 8 bits are only computed with: wrong ones
make wrong results, which nobody gets before this check has ended. It takes less than loading and a
first run take anyway: it compares CRC-32 (3 GB/s), and files from before they were kept SHA-256
(1.4 GB/s where the CPU has instructions for it, a third elsewhere).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_ONLY_COMPUTED_WITH = frozenset(["f32", "f64", "f16", "bf16", "i8", "u8"])
WORTH_A_THREAD_BYTES = 8 << 20
"""Of constants in all: fewer are checked before a thread has started."""


class ConstantsCheck:
    """A check in a thread of its own."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._error: Exception | None = None
        self._check = check
        self._thread = threading.Thread(target=self._run, name="artifact-check", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._check()
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            self._error = error

    def wait(self) -> None:
        """Wait until it has ended, and raise what it found; each time."""
        self._thread.join()
        if self._error is not None:
            raise self._error


def large_constants(variants: Sequence[Any], sizes: Sequence[int]) -> frozenset[int]:
    """The numbers of parts that may be checked later: none where they are worth no thread.

    `variants` are as the manifest has them, unchecked: what is no list of constants has none.
    """
    later, sooner = set[int](), set[int]()
    for variant in variants:
        for number, is_later in _uses(variant).items():
            (later if is_later else sooner).add(number)
    found = frozenset(number for number in later - sooner if 0 <= number < len(sizes))
    return found if sum(sizes[number] for number in found) >= WORTH_A_THREAD_BYTES else frozenset()


def _uses(variant: Any) -> Mapping[int, bool]:
    """Whether each part that a variant uses is a constant that is only computed with."""
    try:
        numbers, types = variant["parts"], [type for type, _ in variant["constant_types"]]
        first = len(numbers) - len(types)
        uses: dict[int, bool] = {}
        for place, number in enumerate(numbers):
            is_later = place >= max(first, 1) and types[place - first] in _ONLY_COMPUTED_WITH
            uses[int(number)] = uses.get(int(number), True) and is_later
    except (KeyError, TypeError, ValueError):
        return {}
    return uses
