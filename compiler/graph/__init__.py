"""Graph: types, folded constants, decomposed operators recognised, before it is planned."""
