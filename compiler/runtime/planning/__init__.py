"""What is decided of memory before there is an entry: arena, packed constants, steps."""
