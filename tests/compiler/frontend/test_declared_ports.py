"""What a session looks at before it builds."""

from __future__ import annotations

import subprocess
import sys


def test_converters_are_not_imported_to_look_at_ports() -> None:
    program = (
        "import sys, tunefarm.compiler.frontend.declared_ports\n"
        "print('tunefarm.compiler.frontend.operators' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
