"""Settings come through the configuration as they are, and a mistake in them is one line."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

from fedbnn.base.errors import UserError
from fedbnn.federation.method import Method
from fedbnn.methods import METHODS
from fedbnn.runs.config import load_config, parse_config, toml_value


def check_settings(method: Method[Any, Any]) -> None:
    """The class can be found by its name, and its settings survive being written down and read again.

    An unknown setting, or one of a wrong kind, is a UserError of one line that names it.
    """
    cls = type(method)
    where = cls.name if METHODS.get(cls.name) is cls else f"{cls.__module__}:{cls.__qualname__}"
    chosen = f'method="{where}"'
    given = asdict(cast(Any, method))
    overrides = [f"methods.{cls.name}.{name}={toml_value(value)}" for name, value in given.items()]
    try:
        config = load_config(None, [chosen, *overrides])
        again = parse_config(json.loads(json.dumps(config.to_json())))
    except UserError as error:
        raise AssertionError(f"method '{cls.name}' cannot be configured: {error}") from error
    assert config.chosen() == again.chosen() == method, (
        f"method '{cls.name}': its settings come out of a configuration as {config.chosen()}, they were {method}"
    )
    _refused([chosen, f"methods.{cls.name}.not_a_setting=1"], f"methods.{cls.name}.not_a_setting")
    for name, value in given.items():
        wrong = "1" if isinstance(value, dict) else "{a = 1}"
        _refused([chosen, f"methods.{cls.name}.{name}={wrong}"], f"methods.{cls.name}.{name}")


def _refused(overrides: Sequence[str], field: str) -> None:
    try:
        load_config(None, overrides)
    except UserError as error:
        text = str(error)
        assert "\n" not in text, f"the refusal of {overrides[-1]!r} has more than one line: {text}"
        assert field in text, f"the refusal of {overrides[-1]!r} does not name {field}: {text}"
    else:
        raise AssertionError(f"{overrides[-1]!r} is accepted: declare the class with @settings and type every field")
