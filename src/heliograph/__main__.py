"""`python -m heliograph` is `heliograph`, also where its script is not on the path."""

from heliograph.cli.main import main

main()
