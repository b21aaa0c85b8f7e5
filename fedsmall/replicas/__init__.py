"""Replica trees: which samples each node has, and how a tree is folded."""
