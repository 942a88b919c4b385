"""Precision: which contractions of a model are lowered, so that it is fastest within an error.

search    contractions with times and errors -> points, the fastest within the budget (numbers only)
effects   a plan -> what its outputs lose, from runs of the model that it makes
speed     uniform builds -> the time of each contraction in each precision, and of conversions
data      calibration data -> samples to choose by, samples held out, ranges
model     a plan -> the model compiled with it, and what its contractions take
race      plans timed as whole models in turn -> the fastest within the error
choose    all of it in order: what `--precision auto` does
report    what came of it: tables and a drawing for people
"""
