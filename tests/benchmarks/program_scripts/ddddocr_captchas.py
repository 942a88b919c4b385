"""ddddocr reads captchas of any width."""

from common import encoded, line, report, take_place

take_place()
import ddddocr  # noqa: E402

reader = ddddocr.DdddOcr(show_ad=False)
texts = (("a3Fg", 160), ("xyz12", 200), ("7", 80), ("long99text", 400))
report(reader.classification, [encoded(line(text, width)) for text, width in texts])
