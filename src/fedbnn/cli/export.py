"""The command `fedbnn export`: a client's model as files for elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

from fedbnn.deployment.export import export as write
from fedbnn.deployment.loaded import load


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    client: Annotated[str, typer.Option(help="Name of a client.")],
    out: Annotated[Path, typer.Option(help="A folder that is not there yet.")],
    onnx: Annotated[bool, typer.Option(help="Write the mean network as model.onnx; needs fedbnn[onnx].")] = True,
    own_code: Annotated[
        bool, typer.Option("--own-code", help="Import methods and models that the run folder names; only if trusted.")
    ] = False,
) -> None:
    """Write a client's posterior (safetensors), its mean network (ONNX) and a model card.

    These hold what the client learned from its records: give them only to those who may see the records.
    """
    for file in write(load(folder, own_code=own_code), client, out, onnx=onnx):
        typer.echo(file)
