"""Before a site trains: the task and its data, what a plan may ask, the sheet of a run, the papers' bounds."""
