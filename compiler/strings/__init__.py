"""Operators of strings, which run on the host before a model's compiled code: plain Python."""
