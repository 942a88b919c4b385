"""Golden files: printed programs that a person has read, compared character by character."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1] / "golden"


def check_golden(name: str, text: str, update: bool) -> None:
    """Compare with tests/golden/`name`, or write it (`pytest --update-golden`)."""
    path = _FOLDER / name
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"{path} is missing: write it with --update-golden and read it"
    assert text == path.read_text(), f"{name} differs: if that is meant, run with --update-golden"
