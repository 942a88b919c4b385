"""An example of every command, for its page. The tests run those that can run by themselves.

They run in a folder that holds `mlp.onnx`, a small model of the zoo, and `tuning.db`, which has its
records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Example:
    """Lines for a shell; `runs` says whether they can be run in a test."""

    text: str
    runs: bool = True

    @property
    def language(self) -> str:
        """Of the fenced block: sh blocks are run, console blocks are shown."""
        return "sh" if self.runs else "console"


EXAMPLES: Mapping[str, Example] = {
    "tune": Example("tune mlp.onnx --db tuning.db --runner local --trials 24"),
    "tune build": Example(
        "tune build mlp.onnx --db tuning.db -o mlp.tuned\n"
        "tune build mlp.onnx --untuned -o mlp.untuned    # without records"
    ),
    "tune run": Example(
        "tune build mlp.onnx --db tuning.db -o mlp.tuned\ntune run mlp.tuned --repeat 20 --profile"
    ),
    "tune generate": Example(
        "tune zoo decoder_step --dynamic -o decoder.onnx\n"
        "tune build decoder.onnx --shape batch=1 --shape past_sequence_length=0..63 --untuned "
        "-o decoder.tuned\n"
        "tune generate decoder.tuned --prompt-ids 17,4,8 --max-tokens 12"
    ),
    "tune bench": Example("tune bench mlp.onnx --db tuning.db --against onnxruntime"),
    "tune zoo": Example(
        "tune zoo mlp -o small.onnx\ntune zoo mlp --quantized -o small_8_bits.onnx"
    ),
    "tune inspect": Example(
        "tune inspect mlp.onnx --stage kernels\ntune inspect mlp.onnx --stage loops --db tuning.db"
    ),
    "tune reduce": Example(
        "tune reduce model.onnx --check onnxruntime\n"
        "tune reduce model.onnx --check mine.py:still_fails -o small.onnx",
        runs=False,
    ),
    "tune report": Example("tune report --db tuning.db --html report.html"),
    "tune status": Example("tune status --db tuning.db"),
    "tune stop": Example("tune stop last --db tuning.db", runs=False),
    "tune resume": Example("tune resume last --db tuning.db --minutes 30", runs=False),
    "tune watch": Example("tune watch --db tuning.db", runs=False),
    "tune doctor": Example("tune doctor", runs=False),
    "tune verify": Example("tune verify mlp.onnx --db tuning.db", runs=False),
    "tune jobs": Example("tune jobs list --db tuning.db"),
    "tune jobs add": Example("tune jobs add --model mlp.onnx --db tuning.db --threads 1"),
    "tune jobs list": Example("tune jobs list --db tuning.db"),
    "tune jobs run": Example("tune jobs run --db tuning.db --until 07:00", runs=False),
    "tune jobs remove": Example("tune jobs remove --finished --db tuning.db"),
    "tune farm": Example("tune farm status", runs=False),
    "tune farm start": Example("tune farm start", runs=False),
    "tune farm join": Example("tune farm join HEAD:6379 --token-file farm-token", runs=False),
    "tune farm status": Example("tune farm status", runs=False),
    "tune farm stop": Example("tune farm stop", runs=False),
    "tune docs": Example("tune docs\ntune docs sizes\ntune docs build"),
    "tune db": Example("tune db list --db tuning.db"),
    "tune db list": Example("tune db list --db tuning.db"),
    "tune db show": Example(
        "# the start of a kernel's key, from tune db list\n"
        'key=$(tune db list --db tuning.db --json - | grep -om1 \'"workload": "[0-9a-f]*\''
        " | cut -d'\"' -f4)\n"
        'tune db show "$key" --db tuning.db --top 5'
    ),
    "tune db why": Example("tune db why mlp.onnx --db tuning.db"),
    "tune db builds": Example("tune db builds --db tuning.db"),
    "tune db export": Example(
        "tune db export --db tuning.db -o night.jsonl\n"
        "tune db export --db tuning.db --optuna study.db       # for optuna-dashboard"
    ),
    "tune db import": Example(
        "tune db export --db tuning.db -o night.jsonl\ntune db import night.jsonl --db other.db"
    ),
    "tune db merge": Example("tune db merge tuning.db --db all.db"),
    "tune db pack": Example("tune db pack mlp.onnx --db tuning.db -o mlp.pack"),
    "tune db add": Example(
        "tune db pack mlp.onnx --db tuning.db -o team.pack\ntune db add team.pack --db mine.db"
    ),
    "tune db rollback": Example(
        "tune db merge tuning.db --db merged.db\ntune db rollback --db merged.db"
    ),
    "tune db prune": Example("tune db prune --db tuning.db --keep 64 --dry-run"),
    "tune db check": Example("tune db check --db tuning.db --replay 2"),
    "tune db salvage": Example("tune db salvage tuning.db -o saved.db"),
    "tune db upgrade": Example("tune db upgrade --db tuning.db"),
}
