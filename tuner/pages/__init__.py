"""Pages: what databases hold as self-contained HTML, for people who look at it in the morning."""
