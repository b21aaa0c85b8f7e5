"""What makes the documentation site out of docs/, the docstrings, the models of a scenario and the command line."""
