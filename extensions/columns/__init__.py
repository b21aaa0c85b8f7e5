"""Boosted trees over split columns: sites that hold other columns of the same patients (SecureBoost, SecureBoost+).

What a party does is a function from a message to a message; nothing but ``site`` and ``server`` knows a network.
"""
