"""What is trained."""
