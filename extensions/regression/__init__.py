"""Regressions that are exact over sites: what each site sums, Newton's steps from the sums, and what they tell."""
