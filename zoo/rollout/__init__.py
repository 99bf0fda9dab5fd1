"""From tasks to trajectories: generation, agent loop, protocols, context managers."""
