"""Algorithm 1: models, and how they travel, wait, are averaged and refused."""
