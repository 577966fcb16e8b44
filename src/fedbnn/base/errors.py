"""The one exception that means: what the user gave us cannot be used, and here is what to do."""


class UserError(Exception):
    """A mistake in what the user gave. Its text is one line: which field, which value, what is allowed.

    The command line prints it without a traceback and exits with code 2.
    """
