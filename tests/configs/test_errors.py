"""Errors are sentences that can be read."""

from __future__ import annotations

from tunefarm.configs.errors import TunefarmError


def test_message_keeps_its_beginning_and_its_end_when_it_is_too_long() -> None:
    error = TunefarmError("begins " + "n" * 1_000_000 + " ends", hint="h" * 10_000)
    assert len(str(error)) < 4000
    assert error.message.startswith("begins nnn")
    assert error.message.endswith("nnn ends")
    assert TunefarmError("short").message == "short"
