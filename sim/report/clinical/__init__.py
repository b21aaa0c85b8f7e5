"""The half of a report for clinicians: one model, what it says of whom, and where TRIPOD+AI is answered."""
