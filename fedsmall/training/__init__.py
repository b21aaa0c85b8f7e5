"""A round of local training, at one site or at many."""
