"""The command `fedbnn suggest`: which method and settings fit a federation."""

from dataclasses import asdict

from fedbnn.cli.terminal import ConfigFile, Json, Set, echo_json, say
from fedbnn.data import federate, load_dataset
from fedbnn.runs.config import load_config
from fedbnn.runs.experiment import obtain_data
from fedbnn.runs.suggest import Facts
from fedbnn.runs.suggest import suggest as suggested


def suggest(config: ConfigFile = None, changes: Set = None, as_json: Json = False) -> None:
    """Say which method and settings fit this federation, and why. CONFIG as in `run`; nothing is run.

    What it says rests on the committed results; `fedbnn compare CONFIG` tells on your own data.
    """
    settings = load_config(config, changes or [])
    obtain_data(settings)
    data = federate(load_dataset(settings.data), settings.data, settings.partition, settings.seed)
    found = suggested(Facts.of(settings, data))
    if as_json:
        echo_json([{**asdict(one), "command": one.command} for one in found])
        return
    for number, one in enumerate(found):
        say(f"{'best' if number == 0 else 'or'}: {one.method}: {one.why} ({one.where})")
        say(f"    fedbnn run {config or ''} {one.command}".replace("  --", " --"))
