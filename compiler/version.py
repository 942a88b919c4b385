"""The version of the compiler: below everything, so that records and artifacts can name it."""

# Part of every record's key: change it when the code generated for a schedule changes.
VERSION = "12"
