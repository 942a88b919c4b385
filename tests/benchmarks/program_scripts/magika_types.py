"""Magika tells file types by their first and last bytes."""

from common import report, take_place

take_place()
from magika import Magika  # noqa: E402

teller = Magika()
files = [
    b"import os\nprint('x')\n" * 20,
    b'{"a": 1}' * 10,
    b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8,
    b"<html><body>hi</body></html>" * 5,
    b"#include <stdio.h>\nint main(void) { return 0; }\n",
]


def notify(content):
    found = teller.identify_bytes(content)
    return [str(found.output.label), round(float(found.score), 3)]


report(notify, files)
