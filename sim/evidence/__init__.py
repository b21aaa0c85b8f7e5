"""The papers' tables and figures, the study, and the search for learning rates."""
