"""Sizes that are known at run time only: found in arrays, checked, and chosen by."""
