"""The doctor: what this machine, its libraries and a user's files are to tuning, and what to mend.

Each check runs in a process of its own, so that a library that cannot be imported, or that ends the
process that imports it, costs one line of the report.
"""
