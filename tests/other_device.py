"""A second device, made of the CPU's memory, that is as strict as a GPU: to test without one where tensors lie.

Tensors on it call their device "meta" and hold their numbers in an ordinary tensor, so results can be compared bit for
bit. As on CUDA, one operation cannot take tensors of both devices (save for a single number of the CPU's), random
numbers need a generator of the tensor's device, and numpy sees none of it. As on MPS, there is no double precision.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

OTHER = torch.device("meta")


class WrongDevice(RuntimeError):
    """What a real device would refuse."""


_Generator = torch.Generator


class OtherGenerator(_Generator):
    """A generator of the other device; draws as the CPU's does.

    Operations get it as an ordinary one, without its class, so it is known again by its seed.
    """

    seeds: ClassVar[set[int]] = set()

    def manual_seed(self, seed: int) -> "OtherGenerator":
        self.seeds.add(seed)
        super().manual_seed(seed)
        return self

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return OTHER


class _Either(type):
    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        return OtherGenerator() if torch.device(device) == OTHER else _Generator(device)

    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, _Generator)


class Generators(metaclass=_Either):
    """Stands in for `torch.Generator`, which does not know the other device."""


class OtherTensor(torch.Tensor):
    """A tensor on the other device; `numbers` is where they are."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor) -> "OtherTensor":
        if numbers.dtype in (torch.float64, torch.complex128):
            raise WrongDevice("there is no double precision on this device")
        with torch.inference_mode(numbers.is_inference()):
            made = torch.Tensor._make_wrapper_subclass(
                cls,
                numbers.size(),
                numbers.stride(),
                numbers.storage_offset(),
                dtype=numbers.dtype,
                device=OTHER,
            )
        made.numbers = numbers
        return made

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, other: "OtherTensor") -> None:
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.numbers = other.numbers

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class _Created(TorchDispatchMode):
    """Sees the operations that take no tensor of the other device: those that make or move one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation of torch, on the numbers; its results are where it was asked for, or else where its tensors are."""
    given = tree_flatten((args, kwargs))[0]
    tensors = [one for one in given if isinstance(one, torch.Tensor)]
    there = [one for one in tensors if isinstance(one, OtherTensor)]
    asked = [one for one in given if isinstance(one, torch.device)]
    copies = func._schema.name == "aten::copy_"
    if there and not copies and any(one.dim() > 0 for one in tensors if not isinstance(one, OtherTensor)):
        raise WrongDevice(f"{func} got tensors of two devices")
    leads_there = isinstance(tensors[0], OtherTensor) if copies else bool(there)
    to_there = asked[0].type == OTHER.type if asked else leads_there
    for one in given:
        if isinstance(one, _Generator) and (one.initial_seed() in OtherGenerator.seeds) != to_there:
            raise WrongDevice(f"{func} got a generator of another device")

    def plain(one: Any) -> Any:
        return (
            one.numbers
            if isinstance(one, OtherTensor)
            else torch.device("cpu")
            if isinstance(one, torch.device)
            else one
        )

    kept = {id(one.numbers): one for one in there}  # an argument that is given back stays the same object

    def wrapped(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        if to_there:
            return kept[id(one)] if id(one) in kept else OtherTensor(one)
        return one.clone() if id(one) in kept else one

    args, kwargs = tree_map(plain, (args, kwargs))
    return tree_map(wrapped, func(*args, **kwargs))


@contextmanager
def other_device() -> Iterator[torch.device]:
    """The device exists while this is open."""

    with pytest.MonkeyPatch.context() as patch, _Created():
        patch.setattr(torch, "Generator", Generators)
        # Optimisers keep a list of devices with fused kernels. Ours has those of the CPU.
        patch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: [OTHER.type, "cpu"])
        patch.setattr(OtherGenerator, "seeds", set())
        yield OTHER
