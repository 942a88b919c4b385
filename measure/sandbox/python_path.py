"""PYTHONPATH of child processes, which import this project wherever it lies."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def python_path() -> str:
    """This process's PYTHONPATH with the project in front."""
    return os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
