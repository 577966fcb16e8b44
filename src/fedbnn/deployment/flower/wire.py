"""Our messages in Flower's records: named arrays, and facts beside them as JSON. Reading them can run no code."""

import json
import math
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedbnn.federation.message import BadMessage, Message

MOST_FACTS = 1 << 20  # bytes of JSON
_ARRAYS, _FACTS, _JSON = "arrays", "facts", "json"
_HEADER = 4096  # bytes that NumPy's header may add to an array
_KINDS = {"<f4": torch.float32, "<i8": torch.int64}


def packed(message: Message, facts: Mapping[str, Any]) -> RecordDict:
    """A message and facts, as Flower carries them."""
    arrays = {name: Array(array.numpy()) for name, array in sorted(message.arrays.items())}
    return RecordDict({_ARRAYS: ArrayRecord(arrays), _FACTS: ConfigRecord({_JSON: json.dumps(facts)})})


def unpacked(content: RecordDict, most: int) -> tuple[Message, dict[str, Any]]:
    """What `packed` made, whoever sent it; a BadMessage if it is anything else or its arrays have over `most` bytes."""
    arrays, facts = content.get(_ARRAYS), content.get(_FACTS)
    if not isinstance(arrays, ArrayRecord) or not isinstance(facts, ConfigRecord):
        raise BadMessage(f"it holds the records {sorted(content)}, agreed were '{_ARRAYS}' and '{_FACTS}'")
    # Sizes first: nothing is unpacked of a message that is too large.
    size, allowed = sum(len(array.data) for array in arrays.values()), most + _HEADER * len(arrays)
    if size > allowed:
        raise BadMessage(f"it holds {size} bytes of arrays, agreed were at most {most}")
    return Message({name: _tensor(name, array) for name, array in arrays.items()}), _facts(facts)


def _tensor(name: str, array: Array) -> Tensor:
    """The numbers of an array in NumPy's format, version 1.0, without trusting its header."""
    stream = BytesIO(array.data)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("version")
        shape, fortran, kind = np.lib.format.read_array_header_1_0(stream)
    except (ValueError, OSError) as error:
        raise BadMessage(f"'{name}' is not an array in NumPy's format") from error
    if kind.str not in _KINDS or fortran:
        raise BadMessage(f"'{name}' is an array of {kind.str}, agreed are float32 and int64 in C order")
    data = bytearray(array.data[stream.tell() :])
    if any(size < 0 for size in shape) or len(data) != math.prod(shape) * kind.itemsize:
        raise BadMessage(f"'{name}' says its shape is {shape} and has {len(data)} bytes")
    if not data:
        return torch.empty(shape, dtype=_KINDS[kind.str])
    # A copy lies where torch puts its own tensors: the same kernels, hence the same bits, as for a local message.
    return torch.frombuffer(data, dtype=_KINDS[kind.str]).reshape(shape).clone()


def _facts(record: ConfigRecord) -> dict[str, Any]:
    text = record.get(_JSON)
    if not isinstance(text, str) or len(text) > MOST_FACTS:
        raise BadMessage(f"its facts are not JSON of at most {MOST_FACTS} characters")
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMessage("its facts are not JSON") from error
    if not isinstance(facts, dict):
        raise BadMessage("its facts are not a JSON object")
    return facts
