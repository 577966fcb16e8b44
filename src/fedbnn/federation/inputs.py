"""Inputs of new records in any form that users have them in, to the tensor that models see."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbnn.base.errors import UserError
from fedbnn.data.dataset import check_finite
from fedbnn.data.stored import inputs_of
from fedbnn.data.view import InputView
from fedbnn.federation.engines import Site
from fedbnn.models.training import channels_last

Inputs = Any
"""A NumPy array, a torch tensor, a pandas table, or nested lists of numbers."""


def seen_inputs(x: Inputs, site: Site, *, raw: bool) -> Tensor:
    """The inputs as this site's models see them, in the layout in which they are scored.

    With `raw` they are as in the data set's files: images are arranged and divided by 255 as those were, and all are
    scaled as the site's own records. Without it they are so already, as `FederatedData.seen` gives them.
    """
    wanted = tuple(site.client.train.x.shape[1:])
    if not raw:
        given = x if isinstance(x, Tensor) else torch.from_numpy(_array(x).astype(np.float32))
        if tuple(given.shape[1:]) != wanted:
            hint = _hint(tuple(given.shape[1:]), site)
            raise UserError(f"x: a record has shape {tuple(given.shape[1:])}, models see {wanted}{hint}")
        return channels_last(given)
    if site.view is None:
        raise UserError("raw=True: these sites do not know how inputs are scaled; make them with make_sites")
    return scaled_inputs(x, site.view)


def scaled_inputs(x: Inputs, view: InputView) -> Tensor:
    """Inputs as in the data set's files through a view."""
    values, loaded = _array(x), view.loaded_shape
    arranged = values.shape[1:] == loaded and values.dtype != np.uint8
    numbers = values.astype(np.float32) if arranged and values.dtype.kind in "biuf" else inputs_of("x", "it", values)
    if numbers.shape[1:] != loaded:
        raise UserError(f"x: a record has shape {numbers.shape[1:]}, those of the data set have {loaded}")
    if len(numbers) == 0:
        raise UserError("x has no records")
    check_finite("x", numbers)
    return channels_last(torch.from_numpy(view(numbers)))


def _array(x: Inputs) -> "np.ndarray[Any, np.dtype[Any]]":
    if isinstance(x, Tensor):
        return x.detach().cpu().numpy()
    try:
        return np.asarray(x)
    except ValueError:
        raise UserError("x: its records are not of one length") from None


def _hint(shape: tuple[int, ...], site: Site) -> str:
    return "; values as in the data set's files need raw=True" if site.view and shape == site.view.loaded_shape else ""
