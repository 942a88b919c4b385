"""What every script of a program has: passes over its work, timed, and images to work on."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

PASSES = 4


def take_place() -> None:
    """Give onnxruntime's modules tunefarm's sessions, if the command line says `ours`."""
    if sys.argv[1:] == ["ours"]:
        import tunefarm

        tunefarm.replace_onnxruntime()


def report(work: Callable[[Any], Any], items: Iterable[Any]) -> None:
    """Do all the work some times over; print its results and the seconds of each pass."""
    items, seconds, results = list(items), [], None
    for _ in range(PASSES):
        begin = time.perf_counter()
        results = [work(item) for item in items]
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"results": results, "seconds": seconds}, default=str))


def line(text: str, width: int = 400, height: int = 64, size: float = 1.2) -> Any:
    """An image with a line of text."""
    import cv2
    import numpy as np

    image = np.full((height, width, 3), 255, np.uint8)
    place = (12, int(height * 0.7))
    cv2.putText(image, text, place, cv2.FONT_HERSHEY_SIMPLEX, size, (0, 0, 0), 2)
    return image


def encoded(image: Any) -> bytes:
    """The image as a PNG file."""
    import cv2

    return bytes(cv2.imencode(".png", image)[1].tobytes())
