"""The command `fedbnn watch`: a page on this machine that shows a run while it goes on."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from fedbnn.base.errors import UserError
from fedbnn.cli.terminal import say
from fedbnn.runs.watch import WatchServer


def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run or comparison folder, also one that is not there yet.")
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes one that is free.")] = 0,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show a run in the browser while it goes on: rounds, scores, clients, time left, notes. Ctrl-C ends it.

    Served on 127.0.0.1 alone, to read only; the run itself is neither slowed down nor ended.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give the folder of a run or of a comparison")
    with WatchServer(folder, port) as server:
        say(f"{folder}: open {server.url} (Ctrl-C ends watching, not the run)")
        if browser:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("no longer watching")
