"""Inputs of another data set than the one that is learned: as public alignment points, or as foreign records.

Labels have no part in this, so a data set of which there is only a test half can serve.
"""

import numpy as np

from fedbnn.base.errors import UserError
from fedbnn.base.files import expanded
from fedbnn.base.wording import did_you_mean
from fedbnn.data.dataset import Floats, check_finite
from fedbnn.data.generated import GENERATED, generated
from fedbnn.data.known import KNOWN
from fedbnn.data.npz_source import NpzFile
from fedbnn.data.settings import DataSettings
from fedbnn.data.sources import obtain, unseen_inputs
from fedbnn.data.stored import Array, Half, Stored, inputs_of

NAMED = ("digits", *KNOWN)
FOREIGN = 1000
UNSEEN = "unseen"


def alignment_inputs(settings: DataSettings, shape: tuple[int, ...], seed: int) -> Floats:
    """`data.alignment` inputs of `data.alignment_source`, drawn from its training half or, without one, its test half.

    They come as they are loaded: scaling is the caller's. Some kinds of images are made instead (`data.generated`).
    """
    field = "data.alignment_source"
    if settings.alignment_source in GENERATED:
        return generated(field, settings.alignment_source, settings.alignment, shape, seed)
    origin, x = _inputs(field, settings.alignment_source, settings, ("train", "test"))
    if settings.alignment > len(x):
        raise UserError(f"data.alignment = {settings.alignment}, but {origin} has only {len(x)} inputs; lower it")
    rows = np.random.default_rng([seed, *b"alignment"]).choice(len(x), settings.alignment, replace=False)
    return _checked(field, settings.alignment_source, origin, x[np.sort(rows)], shape)


def foreign_inputs(source: str, settings: DataSettings, shape: tuple[int, ...]) -> Floats:
    """The first 1000 test inputs of `evaluation.foreign` (or as many as `data.test_records`), as they are loaded.

    "unseen" stands for those of the classes that nobody has seen.
    """
    if source == UNSEEN:
        return unseen_inputs(settings)
    if source in GENERATED:
        return generated("evaluation.foreign", source, settings.test_records or FOREIGN, shape, 0)
    origin, x = _inputs("evaluation.foreign", source, settings, ("test",))
    return _checked("evaluation.foreign", source, origin, x[: settings.test_records or FOREIGN], shape)


def _inputs(field: str, source: str, settings: DataSettings, halves: tuple[Half, ...]) -> tuple[str, Array]:
    """The inputs of the first of these halves that is there, and what to call them."""
    if _same(source, settings):
        raise UserError(f"{field} = {source!r} is the data set that clients learn; name another, or leave it empty")
    stored = _stored(field, source)
    half = next((half for half in halves if half in stored.halves), halves[-1])
    return f"the {half} half of {source!r}", stored.read(half)[half][0]


def _stored(field: str, source: str) -> Stored:
    if source in NAMED:
        return obtain(field, source)
    if source.endswith(".npz"):
        return NpzFile(source, f"{field} = {source!r}")
    known = (*NAMED, *GENERATED)
    raise UserError(
        f"{field} = {source!r} is neither an .npz file nor one of: {', '.join(known)}{did_you_mean(source, known)}"
    )


def _same(source: str, settings: DataSettings) -> bool:
    if settings.source == "npz" and isinstance(settings.path, str):
        one, other = (expanded(given, repr(given)).resolve() for given in (source, settings.path))
        return one == other
    return source == settings.source


def _checked(field: str, source: str, origin: str, x: Array, shape: tuple[int, ...]) -> Floats:
    inputs = inputs_of(f"{field} = {source!r}", "inputs", x)
    if inputs.shape[1:] != shape:
        raise UserError(
            f"{field} = {source!r}: an input has shape {inputs.shape[1:]}, but the data set that clients learn has "
            f"{shape}; they must be the same"
        )
    if len(x):
        check_finite(f"{field} = {source!r}: {origin}", inputs)
    return inputs
