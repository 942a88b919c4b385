"""The farm: runners that take requests, and the cores that they use."""
