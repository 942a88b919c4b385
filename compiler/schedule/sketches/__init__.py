"""Sketches: the typed choices of a schedule, and the steps, loop shape and cost of each."""
