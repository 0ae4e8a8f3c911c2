"""Finished runs among the published rows of the paper's Tables 1 and 2."""
