"""`python -m vitreous` is `vitreous`."""

from vitreous.cli import main

main()
