"""A trained model as a folder that can be used: from a raw row to a probability, with its card and its digests."""
