"""The papers' tables and figures, the study, and benchmarks: with the repository, and in no wheel."""
