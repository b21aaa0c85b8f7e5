"""Boosted trees over split columns: sites that hold other columns of the same patients (SecureBoost, SecureBoost+)."""
