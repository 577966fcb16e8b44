"""The version of the package, which run folders and sites write down."""

__version__ = "0.1.0"
