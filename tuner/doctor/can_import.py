"""Import one library and no more: `python -m tunefarm.tuner.doctor.can_import NAME`."""

from __future__ import annotations

import sys
from importlib import import_module  # noqa: TID251 - importing it is the test

if __name__ == "__main__":
    import_module(sys.argv[1])
