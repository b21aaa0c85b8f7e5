"""What a site holds itself to: how much it takes, what it seals on its disk, and when it lets go."""
