"""Calibration: what values a model's contractions read, learnt from runs on the user's data.

data      files of the user -> samples, checked       ranges   values -> the range that is kept
collect   f32 runs with those values as outputs       metric   the user's own measure of outputs
options   what a command says of all this             choice   what was chosen: points of a record
"""
