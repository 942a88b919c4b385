"""Values that are made in a fork: what makes them may crash, hang or refuse."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.attack.forked import End, Forked, run_forked
from tunefarm.compiler.errors import TunefarmError

Made = TypeVar("Made")


def made_in_fork(make: Callable[[], Made], path: Path, *, seconds: float) -> Made | Forked:
    """What `make` gives in a fork, by way of a file; how it ended if it gave nothing.

    An error of the project's own is text that was returned: a refusal.
    """

    def there() -> str:
        try:
            made = make()
        except TunefarmError as error:
            return f"{type(error).__name__}: {error}"
        path.write_bytes(pickle.dumps(made))
        return ""

    ended = run_forked(there, seconds=seconds)
    if ended.end is not End.RETURNED or ended.text:
        return ended
    value: Made = pickle.loads(path.read_bytes())
    return value
