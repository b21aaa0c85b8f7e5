"""What a site tells of its patients in sums, and remembers having told."""
