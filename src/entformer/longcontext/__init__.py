"""Length extrapolation: tasks of any length, short training on short sequences, accuracy far beyond them."""
