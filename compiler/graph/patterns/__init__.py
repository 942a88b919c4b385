"""Patterns that models spell out: `match(finder, node)` finds one from its last node."""
