"""Reading ONNX files in the process of the test, where the process is not what is tested.

`tests/measure/sandbox/test_import_model.py` has the process itself, and every test that runs a
command in a process of its own reads its model in another one.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tunefarm.measure.sandbox.import_model import ImportRole
from tunefarm.measure.sandbox.messages import Message, read_message, write_message
from tunefarm.measure.sandbox.worker_process import Role
from tunefarm.measure.sandbox.worker_settings import WorkerSettings


class InProcessWorker:
    """Answers as a worker process that reads models does; messages go through their frames."""

    def __init__(self, settings: WorkerSettings, role: Role) -> None:
        self._role = ImportRole(settings)

    def request(self, message: Message, timeout: float) -> Message:
        """The reply to a request."""
        return _framed(self._role.answer(_framed(message)))

    def close(self) -> None:
        """Nothing is left of it."""


def _framed(message: Message) -> Message:
    frames = io.BytesIO()
    write_message(frames, message)
    frames.seek(0)
    received = read_message(frames)
    assert received is not None
    return received


@contextmanager
def importing_in_process() -> Iterator[None]:
    """Models are read in this process within the context."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tunefarm.measure.sandbox.import_model.WorkerProcess", InProcessWorker)
        yield
