"""ActGuide-RL: action data as minimal, adaptive guidance."""
