"""Whether what was recorded of a model still holds on this machine, and if not, why not."""
