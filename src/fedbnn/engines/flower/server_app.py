"""The server on Flower: the ServerApp that holds the rounds of a deployed run, for every method."""

import logging
import sys
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedbnn.engines.flower.serve import serve
from fedbnn.errors import UserError

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve the folder that the app's configuration names."""
    logging.getLogger("flwr").setLevel(logging.WARNING)  # of every round it would say what `_tell` says better
    place = context.run_config.get("server")
    try:
        if not isinstance(place, str):
            raise UserError('[tool.flwr.app.config] has no server = "/path/of/the/server\'s/folder"')
        serve(grid, Path(place), tell=_tell)
    except UserError as error:
        _tell(f"error: {error}")
        sys.exit(2)


def _tell(text: str) -> None:
    print(f"fedbnn: {text}", flush=True)
