"""Python in a process of its own, for what a test cannot do in its own one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def python(
    *arguments: str | Path,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120.0,
    check: bool = False,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run it with these arguments to its end; what it printed, and how it ended.

    `variables` are added to `env`, which is the environment of the test unless it is given.
    """
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**(os.environ if env is None else env), **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=check,
    )
