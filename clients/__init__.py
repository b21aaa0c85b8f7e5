"""The Flower client that speaks for a hospital."""
