"""Arena of whole models against the lower bound that liveness gives.

    python -m tests.benchmarks.memory [resnet50 ...] [--threads 1] [--json]

The bound is the largest sum, over the steps of the model, of the bytes that are live at that step:
no plan needs less. Kernels have their default schedules, whose workspaces count.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tunefarm.compiler.frontend.zoo import model_names, write_model
from tunefarm.compiler.pipeline import compile_model


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", help=f"of {', '.join(model_names())} (all of them)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.models or model_names():
        with tempfile.TemporaryDirectory() as folder:
            path = write_model(name, Path(folder) / f"{name}.onnx")
            spec = compile_model(path, threads=options.threads).spec
        rows.append({"model": name, "arena": spec.arena_bytes, "bound": spec.arena_lower_bound})
        if not options.json:
            share = spec.arena_bytes / spec.arena_lower_bound
            print(
                f"{name:16} arena {spec.arena_bytes / 2**20:8.2f} MiB  "
                f"bound {spec.arena_lower_bound / 2**20:8.2f} MiB  {share:.3f} x bound",
                flush=True,
            )
    if options.json:
        print(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
