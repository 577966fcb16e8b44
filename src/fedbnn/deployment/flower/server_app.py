"""The server on Flower: the ServerApp that holds the rounds of a deployed run, for every method."""

import logging
import sys
import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedbnn.base.errors import UserError
from fedbnn.deployment.flower.serve import serve

LAST_WORDS = 2.0  # seconds; Flower passes on what was printed every 0.2, and an exit does not wait for it

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve the folder that the app's configuration names."""
    logging.getLogger("flwr").setLevel(logging.WARNING)  # of every round it would say what `_tell` says better
    folder = context.run_config.get("server")
    try:
        if not isinstance(folder, str):
            raise UserError('[tool.flwr.app.config] has no server = "/path/of/the/server\'s/folder"')
        serve(grid, Path(folder), tell=_tell)
    except UserError as error:
        _tell(f"error: {error}")
        time.sleep(LAST_WORDS)
        sys.exit(2)


def _tell(text: str) -> None:
    print(f"fedbnn: {text}", flush=True)
