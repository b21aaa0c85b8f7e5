"""What conducts a run at the server: its loop, journal, and the ServerApps."""
