"""The machine that a process runs on: memory and its limits, states of its CPU."""
