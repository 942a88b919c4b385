"""Scalar and index expressions: nodes, one walker, affine forms and bounds."""
