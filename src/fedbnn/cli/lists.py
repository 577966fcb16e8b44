"""The commands that list what there is: methods, models, data sets, presets, and the configuration."""

import inspect
from dataclasses import asdict

import typer
from rich.text import Text

from fedbnn.cli import tables
from fedbnn.cli.terminal import Json, echo_json, out_console
from fedbnn.data.presence import presence
from fedbnn.methods.registry import known_method, summaries
from fedbnn.methods.wire import Wire, wire_of
from fedbnn.models.architectures import MODELS
from fedbnn.runs.config import default_toml
from fedbnn.runs.config import presets as all_presets


def methods(as_json: Json = False) -> None:
    """List the methods, also those of installed packages; your own are 'package.module:Class'.

    Of each, what a client keeps between rounds (its state), what it sends in a round (names of arrays), and whether
    clients may have different architectures.
    """
    entries = summaries()
    wires = {name: wire for name in entries if (wire := _wire(name)) is not None}
    if as_json:
        told = {name: asdict(wire) for name, wire in wires.items()}
        echo_json([{"method": name, "summary": text, **told.get(name, {})} for name, text in entries.items()])
        return
    words = {name: Text.assemble(text, "\n", (_told(wires.get(name)), "dim")) for name, text in entries.items()}
    out_console.print(tables.listing(words))


def _wire(name: str) -> Wire | None:
    cls = known_method(name)
    try:
        return None if cls is None else wire_of(cls)
    except Exception:  # a class from outside may do anything; the list goes on
        return None


def _told(wire: Wire | None) -> str:
    if wire is None:
        return "what it keeps and sends is not known"
    who = "any architectures" if wire.mixed else "one architecture"
    return f"keeps {', '.join(wire.keeps) or 'nothing'}; sends {', '.join(wire.sends) or 'nothing'}; {who}"


def models(as_json: Json = False) -> None:
    """List the models; your own are 'package.module:factory'."""
    _list("model", {name: (inspect.getdoc(make) or "").splitlines()[0] for name, make in MODELS.items()}, as_json)


def datasets(as_json: Json = False) -> None:
    """List the sources of data, and where each was found.

    Public data sets are looked for in the folder $FEDBNN_DATA, then in ~/.cache/fedbnn (or $XDG_CACHE_HOME/fedbnn):
    NAME.npz or the original files, as they are or in a folder NAME. What is not there is downloaded on first use.
    """
    sources = presence()
    if as_json:
        echo_json([asdict(one) for one in sources])
    else:
        where = [(one.where, "green" if one.present else "dim") for one in sources]
        words = [Text.assemble(one.summary, "\n", place) for one, place in zip(sources, where, strict=True)]
        out_console.print(tables.listing(dict(zip((one.source for one in sources), words, strict=True))))


def presets(as_json: Json = False) -> None:
    """List the configurations that come with the package; `run` and `compare` take their names."""
    _list("preset", all_presets(), as_json)


def config() -> None:
    """Print the default configuration as commented TOML, to start your own from."""
    typer.echo(default_toml(), nl=False)


def _list(kind: str, entries: dict[str, str], as_json: bool) -> None:
    if as_json:
        echo_json([{kind: name, "summary": text} for name, text in entries.items()])
    else:
        out_console.print(tables.listing(entries))
