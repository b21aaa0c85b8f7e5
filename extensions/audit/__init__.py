"""The audit: what each party of a federation can learn of a patient, measured by attacking it many times."""
