"""One module per revision, named after it."""
