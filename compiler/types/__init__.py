"""Element types, tensor types and precision: what every representation shares."""
