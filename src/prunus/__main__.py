"""`python -m prunus` is the same as `prunus`."""

from prunus.cli import main

main()
