"""Precision: which contractions of a model are lowered, so that it is fastest within an error.

search    contractions with times and errors -> points, the fastest within the budget (numbers only)
effects   a plan -> what its outputs lose, from runs of the model that it makes
speed     uniform builds -> the time of each contraction in each precision, and of conversions
choose    all of it in order: what `--numerics auto` does
outcome   what came of it: JSON for the record, a table and a drawing for people
"""
