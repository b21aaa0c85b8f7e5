"""FedDC's Table 1 as a baseline of Flower."""
