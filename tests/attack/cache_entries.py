"""Caches whose entries were damaged, moved or given other facts: builds are what they were.

Each attempt copies the cache of one build, changes an entry or two, and builds again in a fork. The
artefact must have the same bytes: an entry that is not what was kept under its name is not used.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import onnx

from tests.attack.attack import Attack, Outcome
from tests.attack.forked import End, run_forked
from tests.end_to_end.tiny_model import tiny_model
from tunefarm.compiler.content_cache import ContentCache
from tunefarm.configs.settings import load_settings
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.request import BuildRequest

_HASH_BYTES = 32
_FACTS: tuple[Any, ...] = (None, [], {}, 0, "x", [[]], {"kernels": None}, {"kept": {}}, 1e308)


class CacheEntries(Attack):
    """Damages of the entries that one build leaves."""

    name: ClassVar[str] = "cache"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._model = folder / ".tiny.onnx"
        self._cache = folder / ".cache"
        onnx.save(tiny_model(), self._model)
        self._build(self._cache, folder / ".tiny.tuned")
        self._expected = (folder / ".tiny.tuned").read_bytes()

    def attempt(self, seed: int) -> Outcome:
        rng = Random(seed)
        cache = self.folder / "cache"
        shutil.copytree(self._cache, cache)
        if rng.random() < 0.6:  # so that the code of single kernels is looked for
            _forget_artefacts(cache)
        done = [self._change(rng, cache) for _ in range(rng.choice((1, 1, 2, 5)))]
        output = self.folder / "tiny.tuned"
        ended = run_forked(lambda: self._build(cache, output))
        text = "\n".join(done)
        if ended.end is not End.RETURNED:
            return Outcome(str(ended.end), broke=True, detail=f"{text}\n{ended.text}")
        if output.read_bytes() != self._expected:
            return Outcome("another artefact", broke=True, detail=text)
        return Outcome(f"{done[0].split()[0]} not used")

    def _build(self, cache: Path, output: Path) -> str:
        settings = load_settings(None, {"cache.folder": str(cache)}, environment={})
        build(BuildRequest(str(self._model), str(output), settings, untuned=True))
        return ""

    def _change(self, rng: Random, cache: Path) -> str:
        """Change an entry; what was done, beginning with one word for it."""
        found = [path for path in cache.glob("??/*.entry") if not path.is_symlink()]
        entries = sorted(found, key=lambda path: path.read_bytes()[_HASH_BYTES:])  # names change
        path = rng.choice(entries)
        name, content = path.relative_to(cache), path.read_bytes()
        alike = [entry for entry in entries if _kind(entry.read_bytes()) == _kind(content)]
        other = rng.choice(alike if rng.random() < 0.7 else entries)
        match rng.randrange(6):
            case 0 | 1:
                path.write_bytes(other.read_bytes())
                return f"moved {other.relative_to(cache)} to {name}"
            case 2:
                path.unlink()
                path.symlink_to(other if other != path else cache)
                return f"linked {name}"
            case 3:
                facts = _other_facts(rng, content)
                ContentCache(cache).add(f"{name.parent}{path.stem}", facts, _data(content))
                return f"facts of {name}: {json.dumps(facts)[:200]}"
            case _:
                damage = rng.choice(_DAMAGES)
                path.write_bytes(damage(rng, content))
                return f"damaged {name}"


def _forget_artefacts(cache: Path) -> None:
    """Remove what says which artefact a build gives."""
    for path in cache.glob("??/*.entry"):
        if b'"kept":' in path.read_bytes()[:1_000_000].partition(b"\n")[0]:
            path.unlink()


def _facts(content: bytes) -> Any:
    """The facts of an entry; None for a kept artefact."""
    try:
        return json.loads(content[_HASH_BYTES:].partition(b"\n")[0])
    except ValueError:
        return None


def _kind(content: bytes) -> list[str]:
    """What the facts of an entry say something of."""
    facts = _facts(content)
    return sorted(facts) if isinstance(facts, dict) else []


def _data(content: bytes) -> bytes:
    return content[_HASH_BYTES:].partition(b"\n")[2]


def _other_facts(rng: Random, content: bytes) -> Any:
    """Facts that lack a field, or are none at all."""
    facts = _facts(content)
    if isinstance(facts, dict) and facts and rng.random() < 0.6:
        facts.pop(rng.choice(list(facts)))
        return facts
    return rng.choice(_FACTS)


def _flipped(rng: Random, content: bytes) -> bytes:
    changed = bytearray(content or b"\0")
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


_DAMAGES: tuple[Callable[[Random, bytes], bytes], ...] = (
    _flipped,
    _flipped,
    lambda rng, content: content[: rng.randrange(len(content) + 1)],
    lambda rng, content: content + rng.randbytes(rng.choice((1, 32, 1000))),
    lambda rng, content: content[:_HASH_BYTES] + bytes(len(content) - _HASH_BYTES),
    lambda _, content: bytes(len(content)),
)
