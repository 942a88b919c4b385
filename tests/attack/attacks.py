"""The attacks by name. Each is imported when it is used: they need different libraries."""

from __future__ import annotations

from importlib import import_module

from tests.attack.attack import Attack

_HOMES = {
    "graphs": "tests.attack.graphs:Graphs",
    "sized": "tests.attack.sized:Sized",
    "emulated": "tests.attack.emulated:Emulated",
    "quantised": "tests.attack.quantised:Quantised",
    "models": "tests.attack.models:Models",
    "artefacts": "tests.attack.artefacts:Artefacts",
    "cache": "tests.attack.cache_entries:CacheEntries",
    "databases": "tests.attack.databases:DatabaseAttack",
    "invocations": "tests.attack.invocations:InvocationsAttack",
    "signals": "tests.attack.signals:SignalsAttack",
}
"""Where each attack's class is, as module:name."""


def attack_names() -> tuple[str, ...]:
    """All of them."""
    return tuple(_HOMES)


def load_attack(name: str) -> type[Attack]:
    """The class of that name; KeyError if there is none."""
    module, _, attribute = _HOMES[name].partition(":")
    attack: type[Attack] = getattr(import_module(module), attribute)
    return attack
