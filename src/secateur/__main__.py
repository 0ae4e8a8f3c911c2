"""`python -m secateur` is the same as `secateur`."""

from secateur.cli import main

main()
