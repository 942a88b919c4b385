"""The command line: each command's options, and what it prints."""
