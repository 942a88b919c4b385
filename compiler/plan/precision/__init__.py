"""What is computed and stored in narrower types."""
