"""Dynamic sizes: found in arrays, checked, and chosen by."""
