"""Entry point of the console scripts: catches signals before anything else is imported."""

from __future__ import annotations

import sys

from tuner.commands.interrupt import catch_signals, end_interrupted, interrupted


def main() -> None:
    """Run the command line of this process, and end it."""
    catch_signals()
    try:
        from tuner.commands.cli import main as run
    except BaseException:
        if not interrupted():
            raise
        print("interrupted", file=sys.stderr, flush=True)
        end_interrupted()
    run()


if __name__ == "__main__":
    main()
