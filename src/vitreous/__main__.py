"""`python -m vitreous` is `vitreous`."""

from vitreous.cli.main import main

main()
