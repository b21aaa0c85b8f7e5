"""A server's half of sealed letters and secure sums: it passes on what it cannot open."""
