"""A built model as a file: programs, constants and a manifest, sealed."""
