"""How far results are needed where shapes are dynamic."""
