"""RapidOCR's pipeline, its newest generation."""

from common import line, report, take_place

take_place()
from rapidocr import RapidOCR  # noqa: E402

engine = RapidOCR()
texts = (("Hello world 123", 640), ("tunefarm", 400), ("A longer line of 2026", 900))


def read(image):
    found = engine(image)
    pairs = zip(found.txts or (), found.scores or (), strict=True)
    return [[text, round(float(score), 2)] for text, score in pairs]


report(read, [line(text, width, 120, 1.6) for text, width in texts])
