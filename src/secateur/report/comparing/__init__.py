"""A page that compares runs."""
