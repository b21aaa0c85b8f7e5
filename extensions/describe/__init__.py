"""A first table of patients over sites, without a model."""
