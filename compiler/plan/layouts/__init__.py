"""In which blocks of channels values lie, by rule."""
