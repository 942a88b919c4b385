"""A process that ends as it is told: `python -m tests.measure.sandbox.misbehaving HOW`."""

from __future__ import annotations

import os
import subprocess
import sys
import time


def main(how: str) -> None:
    print("said", flush=True)
    match how:
        case "abort":
            os.abort()
        case "raise":
            raise RuntimeError("of its own")
        case "hang":
            time.sleep(600.0)
        case "leave":  # a process that holds stdout, in a group of its own
            subprocess.Popen(["sleep", "20"], start_new_session=True)


if __name__ == "__main__":
    main(sys.argv[1])
