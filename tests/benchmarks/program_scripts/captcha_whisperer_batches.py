"""captcha-whisperer reads captchas in batches."""

from common import encoded, line, report, take_place

take_place()
from captcha_whisperer.recognizer import CaptchaRecognizer, preprocess_bytes  # noqa: E402

reader = CaptchaRecognizer()
images = [preprocess_bytes(encoded(line(t, 160, 60))) for t in ("AB12", "x9z", "7Q", "hello")]


def read(count):
    return [
        [found["text"], round(found["confidence"], 3)]
        for found in reader.recognize_batch(images[:count])
    ]


report(read, [1, 2, 3, 4])
