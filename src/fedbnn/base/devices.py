"""Devices by name: which exist here, and what is said of one that does not."""

import re
from typing import Annotated

import torch
from pydantic import AfterValidator

from fedbnn.base.errors import UserError

CPU = torch.device("cpu")
ALLOWED = "auto, cpu, cuda, cuda:N (the N-th CUDA device, from 0) or mps"
_NAMES = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


def checked_name(name: str) -> str:
    """The name itself, as settings take it; a ValueError if no machine has such a device."""
    if not is_device_name(name):
        raise ValueError(f"must be {ALLOWED}")
    return name


def is_device_name(name: str) -> bool:
    """Whether it could be a device, of this machine or another."""
    return _NAMES.fullmatch(name) is not None


DeviceName = Annotated[str, AfterValidator(checked_name)]


def find_device(name: str, field: str = "engine.device") -> torch.device:
    """The device of this name; a UserError if PyTorch cannot use it here. 'auto' takes a GPU if there is one.

    `field` is the setting that named it.
    """
    if not is_device_name(name):
        raise UserError(f"{field} = '{name}': must be {ALLOWED}")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    device = torch.device(name)
    if problem := _problem(device):
        raise UserError(f"{field} = '{name}': {problem}; use 'cpu', or 'auto' for the best there is")
    return device


def _problem(device: torch.device) -> str:
    """Why this device cannot be used; empty if it can."""
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            return "PyTorch sees no CUDA device here (it needs an NVIDIA driver and PyTorch's CUDA build)"
        if (device.index or 0) >= count:
            return f"PyTorch sees only {', '.join(f'cuda:{k}' for k in range(count))} here"
    if device.type == "mps" and not torch.backends.mps.is_available():
        return "PyTorch sees no MPS device here (it needs macOS on an Apple processor)"
    return ""
