"""Algorithm 1 and what it moves: local models on their way, global models, and who averages with whom."""
