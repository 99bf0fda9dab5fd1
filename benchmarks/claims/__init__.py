"""The papers' claims: every arm of every method on equal terms, with seeds, intervals and checks."""
