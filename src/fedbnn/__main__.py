"""`python -m fedbnn` is the command line."""

from fedbnn.cli.app import main

main()
