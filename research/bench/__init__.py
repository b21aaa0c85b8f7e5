"""Measurements of the engines against each other and against other frameworks."""
