"""The worker: what happens in a disposable process: build, check, time."""
