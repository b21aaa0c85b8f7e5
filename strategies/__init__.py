"""Flower strategies: daisy-chaining around any strategy, FedDC, the Radon machine, replica trees."""
