"""The process of a turn of the queue: `tune`, which ends when the process that started it does.

python -m tunefarm.tuner.commands.turn PARENT --model FILE …
"""

from __future__ import annotations

import signal
import sys

from tunefarm.measure.sandbox.limits import die_with
from tunefarm.tuner.commands import entry


def main() -> None:
    """Run the command line behind the parent's process id. Without its parent it is interrupted:
    it keeps what is measured."""
    parent = int(sys.argv.pop(1))
    die_with(parent, signal.SIGTERM)
    entry.main()


if __name__ == "__main__":
    main()
