"""The command line, scenarios, engines and comparisons."""
