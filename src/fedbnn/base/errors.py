"""The one exception that means: what the user gave us cannot be used, and here is what to do."""

from fedbnn.base.wording import one_line

LONGEST = 2000  # signs: values may come from files that anybody made


class UserError(Exception):
    """A mistake in what the user gave. Its text is one line: which field, which value, what is allowed.

    The command line prints it without a traceback and exits with code 2.
    """

    def __init__(self, text: str = "") -> None:
        super().__init__(one_line(text, LONGEST))
