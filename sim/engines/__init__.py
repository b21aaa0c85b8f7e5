"""What one plan is run on."""
