"""Our messages in Flower's records: named arrays, and facts beside them as JSON. Reading them can run no code.

Whoever sent them, reading gives what `packed` made or a BadMessage, and nothing else. Arrays come in NumPy's format,
version 1.0, of which only the header that NumPy itself writes for our two kinds of numbers is understood,

    {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }        and spaces up to a line feed,

by a grammar that is all here: NumPy reads a header with Python's own parser, which fails in many ways.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedbnn.federation.message import BadMessage, Message, check_names

MOST_FACTS = 1 << 20  # characters of JSON
MOST_ARRAYS = 1000
DEEPEST = 16  # objects and lists within each other
_ARRAYS, _FACTS, _JSON = "arrays", "facts", "json"
_HEADER = 4096  # bytes that NumPy's header may add to an array
_KINDS = {"<f4": (torch.float32, 4), "<i8": (torch.int64, 8)}
_LARGEST_WHOLE = 2**63
_MOST_NUMBERS = 2**40  # that a shape may speak of; one with a zero in it, too

_SIZE = rb"(?:0|[1-9][0-9]{0,12})"
_HEAD = re.compile(
    rb"\x93NUMPY\x01\x00(?P<length>[\x00-\xff]{2})"
    rb"\{'descr': '(?P<kind>[<>|=][A-Za-z][0-9]{1,3})', 'fortran_order': (?P<fortran>True|False), "
    rb"'shape': \((?P<shape>|" + _SIZE + rb",|" + _SIZE + rb"(?:, " + _SIZE + rb"){1,7})\), \} *\n"
)


def packed(message: Message, facts: Mapping[str, Any]) -> RecordDict:
    """A message and facts, as Flower carries them."""
    arrays = {name: Array(array.contiguous().numpy()) for name, array in sorted(message.arrays.items())}
    return RecordDict({_ARRAYS: ArrayRecord(arrays), _FACTS: ConfigRecord({_JSON: json.dumps(facts)})})


def unpacked(content: RecordDict, most: int) -> tuple[Message, dict[str, Any]]:
    """What `packed` made, whoever sent it; a BadMessage if it is anything else or its arrays have over `most` bytes."""
    try:
        return _unpacked(content, most)
    except BadMessage:
        raise
    except Exception as error:  # what somebody made up may break any part of the reading
        raise BadMessage(f"it cannot be read ({type(error).__name__})") from error


def _unpacked(content: RecordDict, most: int) -> tuple[Message, dict[str, Any]]:
    arrays, facts = content.get(_ARRAYS), content.get(_FACTS)
    if not isinstance(arrays, ArrayRecord) or not isinstance(facts, ConfigRecord):
        raise BadMessage(f"it holds the records {sorted(content)[:10]}, agreed were '{_ARRAYS}' and '{_FACTS}'")
    # Sizes first: nothing is unpacked of a message that is too large.
    if len(arrays) > MOST_ARRAYS:
        raise BadMessage(f"it holds {len(arrays)} arrays, more than {MOST_ARRAYS}")
    size, allowed = sum(len(array.data) for array in arrays.values()), most + _HEADER * len(arrays)
    if size > allowed:
        raise BadMessage(f"it holds {size} bytes of arrays, agreed were at most {most}")
    message = Message({name: _tensor(name, array.data) for name, array in arrays.items()})
    check_names(message)
    return message, _facts(facts)


def _tensor(name: str, written: bytes) -> Tensor:
    """The numbers of an array in NumPy's format, without trusting its header."""
    head = _HEAD.match(written[:_HEADER])
    if head is None or int.from_bytes(head["length"], "little") != head.end() - 10:
        raise BadMessage(f"'{name}' is not an array in NumPy's format")
    kind = head["kind"].decode()
    if kind not in _KINDS or head["fortran"] == b"True":
        raise BadMessage(f"'{name}' is an array of {kind}, agreed are float32 and int64 in C order")
    dtype, width = _KINDS[kind]
    shape = tuple(int(size) for size in re.findall(rb"[0-9]+", head["shape"]))
    data = bytearray(memoryview(written)[head.end() :])
    if math.prod(max(size, 1) for size in shape) > _MOST_NUMBERS or len(data) != math.prod(shape) * width:
        raise BadMessage(f"'{name}' says its shape is {shape} and has {len(data)} bytes")
    if not data:
        return torch.empty(shape, dtype=dtype)
    # A copy lies where torch puts its own tensors: the same kernels, hence the same bits, as for a local message.
    return torch.frombuffer(data, dtype=dtype).reshape(shape).clone()


def _facts(record: ConfigRecord) -> dict[str, Any]:
    text = record.get(_JSON)
    if not isinstance(text, str) or len(text) > MOST_FACTS:
        raise BadMessage(f"its facts are not JSON of at most {MOST_FACTS} characters")
    try:
        facts = json.loads(text, parse_constant=_refuse)
        _check(facts, DEEPEST)
    except (ValueError, RecursionError) as error:
        raise BadMessage("its facts are not JSON of finite numbers and short lists") from error
    if not isinstance(facts, dict):
        raise BadMessage("its facts are not a JSON object")
    return facts


def _check(value: object, depth: int) -> None:
    """ValueError for what JSON can hold and nobody can use: depths, numbers beyond 64 bits, halves of characters."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, int) and not -_LARGEST_WHOLE <= value < _LARGEST_WHOLE:
        raise ValueError("a number beyond 64 bits")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not a finite number")
    elif isinstance(value, dict | list):
        if depth == 0:
            raise ValueError("too deep")
        for one in [*value, *value.values()] if isinstance(value, dict) else value:
            _check(one, depth - 1)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
