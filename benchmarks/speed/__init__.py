"""How fast the zoo is, measured as CPU-seconds on one thread."""
