"""silero-vad's wrapper over a stream of blocks, at both of its rates."""

from common import report, take_place

take_place()
import numpy as np  # noqa: E402
import torch  # noqa: E402
from silero_vad import load_silero_vad  # noqa: E402

model = load_silero_vad(onnx=True)


def listen(rate):
    rng, block = np.random.default_rng(1), 512 if rate == 16000 else 256
    model.reset_states()
    found = []
    for number in range(100):
        loud = 0.3 if number % 40 < 20 else 0.0
        wave = torch.from_numpy((rng.standard_normal(block) * loud).astype(np.float32))
        found.append(round(float(model(wave, rate)), 3))
    return found


report(listen, [16000, 8000])
