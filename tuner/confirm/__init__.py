"""Confirming: the best of a search meet the incumbent before one of them is believed."""
