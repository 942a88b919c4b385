"""The doctor: whether machine, libraries and files are ready for tuning, and how to fix them.

Each check runs in a process of its own, so that a library that cannot be imported, or that ends the
process that imports it, costs one line of the report.
"""
