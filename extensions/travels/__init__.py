"""Models on their way through the sites, as a picture that moves: what is known of them, and how it is drawn."""
