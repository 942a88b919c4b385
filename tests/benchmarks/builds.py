"""Processor time of cold builds, and of one candidate: this checkout beside another one.

    python -m tests.benchmarks.builds [resnet18 ...] [--against FOLDER] [--pairs 8] [--json]

Every build is a process of its own, without any cache; those of the two checkouts take turns, and a
ratio is the median of those of the pairs: below 1 this checkout is quicker. `import` is that of the
pipeline, `build` that of the model down to an executable's parts, with the importer's modules,
`candidate` one lowering, emission and compilation of the kernel with the most work, as in each
trial of a search. Threads of all kinds count, waiting does not. Bytecode is written before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from tunefarm.compiler.frontend.zoo import model_names, write_model
from tunefarm.tuner.packaging.build_backend import link_sources

_HERE = Path(__file__).resolve().parents[2]
_MODELS = ("resnet18", "decoder_prefill")
_DEADLINE = 600.0  # seconds for one build

# Runs in either checkout: only what both have.
_BUILD = """
import gc, json, sys, time
begun = time.process_time()
from tunefarm.compiler.pipeline import compile_model
imported = time.process_time()
compiled = compile_model(sys.argv[1])
built = time.process_time()
from tunefarm.compiler.kernels.count_work import kernel_flops
from tunefarm.compiler.llvm import compile_kernel
most = max(compiled.schedules.values(), key=lambda item: kernel_flops(item.kernel))
gc.collect()
gc.freeze()  # else chance decides in which candidate all that the build has left is looked through
candidates = time.process_time()
for _ in range(4):
    compile_kernel(most.kernel, most.used.schedule, compiled.spec.target)
candidate = (time.process_time() - candidates) / 4
print(json.dumps({"import": imported - begun, "build": built - imported, "candidate": candidate}))
"""


def build(checkout: Path, model: Path) -> Mapping[str, float]:
    """Processor seconds by part, in a new process that imports from `checkout`."""
    environment = {**os.environ, "PYTHONPATH": str(link_sources(checkout))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", _BUILD, str(model)]
    run = subprocess.run(
        command,
        cwd=model.parent,
        env=environment,
        stdout=subprocess.PIPE,
        timeout=_DEADLINE,
        check=True,
    )
    seconds: dict[str, float] = json.loads(run.stdout)
    return {**seconds, "whole": seconds["import"] + seconds["build"]}


def builds(checkouts: Sequence[Path], model: Path, pairs: int) -> list[list[Mapping[str, float]]]:
    """A list for each pair, with the seconds of each checkout; the first one takes turns."""
    for checkout in checkouts:
        build(checkout, model)  # bytecode, and the files in memory
    rows: list[list[Mapping[str, float]]] = []
    for number in range(pairs):
        order = list(checkouts) if number % 2 else list(reversed(checkouts))
        found = {checkout: build(checkout, model) for checkout in order}
        rows.append([found[checkout] for checkout in checkouts])
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", help=f"of {', '.join(model_names())}")
    parser.add_argument("--against", type=Path, help="the folder of another checkout")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    checkouts = [_HERE] if options.against is None else [_HERE, options.against.resolve()]
    report: dict[str, dict[str, dict[str, float]]] = {}
    for name in options.models or _MODELS:
        with tempfile.TemporaryDirectory() as folder:
            model = Path(write_model(name, Path(folder) / f"{name}.onnx"))
            rows = builds(checkouts, model, options.pairs)
        report[name] = {}
        for part in rows[0][0]:
            facts = {"seconds": median(row[0][part] for row in rows)}
            if len(checkouts) > 1:
                facts["ratio"] = median(row[0][part] / row[1][part] for row in rows)
            report[name][part] = facts
            if not options.json:
                ratio = f"  {facts['ratio']:.3f} of the other's" if "ratio" in facts else ""
                print(f"{name:16} {part:10} {facts['seconds']:7.3f} s{ratio}", flush=True)
    if options.json:
        print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
