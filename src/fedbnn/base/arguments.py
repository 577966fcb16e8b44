"""Arguments of Python's calls that a type checker would have refused, told in one line that names them."""

from fedbnn.base.errors import UserError


def check_kind(argument: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Refuse a value of another kind; `wanted` says what to give, in words."""
    if not isinstance(value, kind):
        given = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__!r}"
        raise UserError(f"{argument}: {given} was given; give {wanted}")
