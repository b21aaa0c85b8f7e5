"""What a run shows: tables, sentences, figures, the page."""
