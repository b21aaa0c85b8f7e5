"""What a run over real sites shows: on the coordinator's page from sums, and on each hospital's own page."""
