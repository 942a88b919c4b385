"""How far results are needed where sizes are known at run time only."""
