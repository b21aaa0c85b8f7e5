"""Envelopes between sites that no server opens, and sums of which it learns nothing but the sum."""
