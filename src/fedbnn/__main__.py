"""`python -m fedbnn` is the command line."""

from fedbnn.cli import main

main()
