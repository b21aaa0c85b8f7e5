"""What a run over real sites leaves: its log read, its folder made whole, its ends compared."""
