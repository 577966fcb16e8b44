"""The commands of `fedbnn flower`: parse, call one function, print."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fedbnn.base.errors import UserError
from fedbnn.base.wording import printable
from fedbnn.cli.tables import Printed
from fedbnn.cli.terminal import ConfigFile, Set, complain, error_console, out_console, say
from fedbnn.report.table import row, table
from fedbnn.runs.config import load_config

app = typer.Typer(
    no_args_is_help=True,
    help="The same federation among real sites, on Flower: set it up, and try it out on this machine. "
    "docs/deployment.md is the guide.",
)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The federation's folder.")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    config: ConfigFile = None,
    run: Annotated[str, typer.Option(help="Name of the run: a-z, 0-9 and dashes; default DATASET-METHOD.")] = "",
    nodes: Annotated[int | None, typer.Option(help="Number of sites; short for --set partition.clients=N.")] = None,
    changes: Set = None,
) -> None:
    """Write a federation's folder DIR from a configuration: a Flower app, the server's part, one part a site.

    Sites get the records that `fedbnn run` would deal to clients, for trying out; a site.toml says what to change for
    records of one's own. CONFIG as in `fedbnn run`.

    Three sites on handwritten digits: fedbnn flower init DIR --nodes 3
    """
    from fedbnn.deployment.trial.init import write_federation

    more = [] if nodes is None else [f"partition.clients={nodes}"]
    settings = load_config(config, [*(changes or []), *more])
    if nodes is not None and settings.partition.kind == "natural":
        raise UserError(f"--nodes {nodes}: partition.kind is natural, so there are as many sites as groups in the data")
    terms = write_federation(folder, settings, run)
    say(f"{folder}: run {terms.run}, {terms.method}, {len(terms.sites)} sites. Try it out: fedbnn flower up {folder}")


@app.command()
def up(
    folder: Folder,
    nodes: Annotated[int | None, typer.Option(help="Number of nodes; default: one for each site of DIR.")] = None,
    hours: Annotated[float, typer.Option(min=0.01, help="Give up after so many hours.")] = 24.0,
) -> None:
    """Run the federation of DIR on this machine: a link and a node for each site, on 127.0.0.1, then stop them all.

    TLS and node authentication are on; certificates and keys are made on the spot. Logs are in DIR/loopback/logs.
    """
    _need("flwr", "cryptography")
    from fedbnn.deployment.trial.loopback import LoopbackFailure
    from fedbnn.deployment.trial.trial import Trial

    trial = Trial.of(folder, nodes)
    try:
        trial.run(lambda words: error_console.print(Text(printable(words)), soft_wrap=True), timeout=hours * 3600)
    except LoopbackFailure as failure:
        complain(failure)
        raise typer.Exit(1) from None
    rows = [
        row(
            site.name,
            site.model.architecture,
            "scores and diagnostics" if site.shares(trial.terms) else "nothing",
            str(site.state),
        )
        for site in trial.sites
    ]
    out_console.print(Printed(table(["site", "model", "lets out besides its messages", "state"], rows, words=4)))
    first = trial.sites[0]
    say(f"Predict at a site, for example: fedbnn predict --state {first.state} --input {first.alignment}")


@app.command()
def certificates(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write; made if it is not there.")],
    host: Annotated[list[str], typer.Option(help="A name or IP address under which sites reach it; repeatable.")],
) -> None:
    """On the server's host: make an authority (ca.pem, ca.key) and the server's certificate (server.pem, server.key).

    An authority that is there already is used, so that a new server.pem needs nothing new at the sites. Sites get
    ca.pem; the keys never leave this host.
    """
    _need("cryptography")
    from fedbnn.deployment.trial import certificates as make

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (folder / "ca.pem").exists():
        make.make_authority(folder)
    # The link's own processes call it under this address.
    make.make_server_certificate(folder, list(dict.fromkeys([*host, "127.0.0.1"])))
    say(f"{folder}: ca.pem for the sites; server.pem and server.key for the link")


@app.command()
def key(path: Annotated[Path, typer.Argument(metavar="FILE", help="The private key; FILE.pub is the public.")]) -> None:
    """At a site: make the key by which the server knows its node. FILE never leaves; FILE.pub goes to the server."""
    _need("cryptography")
    from fedbnn.deployment.trial.certificates import make_node_key

    say(f"give the server {make_node_key(path)}")


@app.command()
def signing_key(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The private key; only its owner reads it.")],
) -> None:
    """At a site, for secure aggregation: make the key by which the other sites know it, and print its public half.

    FILE never leaves. What is printed goes into `signers` of the terms, by a way that the other sites trust.
    """
    _need("cryptography")
    from fedbnn.privacy.secure.signing import make_signing_key

    say(make_signing_key(path))


def _need(*packages: str) -> None:
    if any(importlib.util.find_spec(name) is None for name in packages):
        raise UserError("this command needs pip install 'fedbnn[flower]'")
