"""Element types, tensor types and numerics: what every representation shares."""
