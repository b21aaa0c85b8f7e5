"""A site's half of sealed letters and secure sums."""
