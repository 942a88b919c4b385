"""RapidOCR's pipeline, its first generation: detection, orientation, recognition of lines."""

from common import line, report, take_place

take_place()
from rapidocr_onnxruntime import RapidOCR  # noqa: E402

engine = RapidOCR()
texts = (("Hello world 123", 640), ("tunefarm", 400), ("A longer line of 2026", 900))


def read(image):
    return [[text, round(float(score), 2)] for _, text, score in engine(image)[0] or ()]


report(read, [line(text, width, 120, 1.6) for text, width in texts])
