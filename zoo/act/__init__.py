"""Agentic Critical Training (arXiv 2603.08706)."""
