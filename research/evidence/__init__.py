"""The papers' tables and figures, and the study."""
