"""arabic-name-romanizer decodes with a beam over an encoder and a decoder."""

from pathlib import Path

from common import report, take_place

take_place()
import arabic_name_romanizer  # noqa: E402
from arabic_name_romanizer.inference import OnnxModel  # noqa: E402

model = OnnxModel(Path(arabic_name_romanizer.__file__).parent / "resources")


def romanize(names):
    return [
        [text for text, _ in found[:2]] for found in model._decode([(n, None) for n in names], None)
    ]


names = ["محمد", "عبدالرحمن", "فاطمة", "يوسف", "الزهراء", "خديجة"]
report(romanize, [names[:1], names[1:3], names[3:]])
