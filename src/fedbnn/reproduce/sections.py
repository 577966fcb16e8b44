"""From a study's JSON to its section of the page."""

from collections.abc import Mapping
from typing import Any

from fedbnn.reproduce import tables
from fedbnn.reproduce.blocks import Figure, Grid, Section


def section(study: Mapping[str, Any]) -> Section:
    notes = [tables.seeds_note(study), tables.privacy_note(study), _changed(study), tables.missing_note(study)]
    return Section(study["study"], study["title"], study["reading"], _blocks(study), [note for note in notes if note])


def _blocks(study: Mapping[str, Any]) -> list[Grid | Figure]:
    match study["kind"]:
        case "table":
            return [*tables.grids(study)]
    raise ValueError(f"a study of kind {study['kind']!r}")


def _changed(study: Mapping[str, Any]) -> str:
    return f"Changed on the command line: {', '.join(study['changed'])}." if study["changed"] else ""
