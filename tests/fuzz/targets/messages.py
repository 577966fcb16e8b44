"""What crosses a wire: messages, replies on Flower, requests to a site, answers in a secure aggregation, HTTP."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.app import Message as FlowerMessage

from fedbnn.base.errors import UserError
from fedbnn.deployment.flower.attendance import Attendance
from fedbnn.deployment.flower.client_app import _request
from fedbnn.deployment.flower.replies import scores_by, sent_by
from fedbnn.deployment.flower.wire import unpacked
from fedbnn.federation.evaluation import evaluate
from fedbnn.federation.message import Distributions, Integers, Message, check, check_sent
from fedbnn.models.bayes import Prediction
from fedbnn.models.regression import Mixture
from fedbnn.privacy.secure.session import Phase
from fedbnn.runs.watch.server import _Handler
from tests.deployment.deployment_sample import small_terms
from tests.deployment.flower.direct_grid import DirectGrid
from tests.fuzz import corpus
from tests.fuzz.mutations import array, changed_bytes, json_tree, safetensors, text_with
from tests.fuzz.targets.target import Prepared, Target
from tests.privacy.secure.aggregation_sample import Parties, random_inputs

MOST = 10**6


def content(data: bytes | None = None, facts: str = "{}") -> RecordDict:
    arrays = {} if data is None else {"phi": Array("float32", (1,), "numpy.ndarray", data)}
    return RecordDict({"arrays": ArrayRecord(arrays), "facts": ConfigRecord({"json": facts})})


def reply_of(answer: RecordDict) -> FlowerMessage:
    DirectGrid({})  # Flower wants to know which task speaks
    request = FlowerMessage(RecordDict(), dst_node_id=1, message_type="train")
    request.metadata.__dict__["_message_id"] = request.object_id
    return FlowerMessage(answer, reply_to=request)


def scored() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(40, 3, generator=generator).softmax(1)
    prediction = Prediction(probs, probs.log(), torch.rand(40, generator=generator), probs[None])
    labels = torch.randint(3, (40,), generator=generator)
    told: dict[str, Any] = json.loads(json.dumps(evaluate(prediction, labels, labels < 2).to_dict()))
    return told


def measured() -> dict[str, Any]:
    """The same in regression."""
    generator = torch.Generator().manual_seed(0)
    prediction = Mixture(torch.randn(2, 40, generator=generator), torch.rand(2, 40, generator=generator) + 0.1)
    targets = torch.randn(40, generator=generator)
    told: dict[str, Any] = json.loads(json.dumps(evaluate(prediction, targets, targets < 1).to_dict()))
    return told


def _message(folder: Path) -> Prepared:
    agreed = {"phi": Distributions((2, 3)), "n": Integers((2,), 9)}
    good = Message({"phi": torch.full((2, 3), 1 / 3), "n": torch.tensor([1, 2])}).to_bytes()
    return Prepared(
        [good, Message().to_bytes()],
        [lambda data: check(Message.from_bytes(data), agreed), lambda data: check_sent(Message.from_bytes(data))],
    )


def _array(folder: Path) -> Prepared:
    valid = [corpus.npy(np.arange(12, dtype=np.float32).reshape(3, 4)), corpus.npy(np.arange(3))]
    return Prepared(valid, [lambda data: sent_by(reply_of(content(data)), MOST)])


def _facts(folder: Path) -> Prepared:
    valid = [
        {"info": {"loss": 1.5}, "seconds": 2.0},
        {"evaluation": {"personal": scored()}},
        {"evaluation": {"personal": measured()}},
    ]

    def text(read: Callable[[FlowerMessage], object]) -> Callable[[bytes], object]:
        return lambda data: read(reply_of(content(facts=data.decode("utf-8", "replace"))))

    return Prepared(
        [json.dumps(one).encode() for one in valid],
        [
            text(lambda reply: sent_by(reply, MOST)),
            text(scores_by),
            text(lambda reply: scores_by(reply, regression=True)),
        ],
    )


def _greeting(folder: Path) -> Prepared:
    terms = small_terms()
    good = {"name": terms.sites[0], "terms": terms.digest, "model": {"name": "mlp", "options": {"hidden": [8]}}}

    def read(data: bytes) -> None:
        reply = reply_of(content(facts=data.decode("utf-8", "replace")))
        asked: Any = SimpleNamespace(message_id=reply.metadata.reply_to_message_id, dst_node_id=1)
        attendance = Attendance(terms, lambda _: None)
        for _, reason in attendance._introductions([SimpleNamespace(metadata=asked)], [reply], {1: ""}):  # type: ignore[list-item]
            raise UserError(reason)

    return Prepared([json.dumps(good).encode()], [read])


def _request_to_a_site(folder: Path) -> Prepared:
    good = {"round": 1, "terms": small_terms().digest, "foreign": False}

    def read(data: bytes) -> None:
        _request("update", *unpacked(content(facts=data.decode("utf-8", "replace")), MOST))

    return Prepared([json.dumps(good).encode()], [read])


def _secure_server(folder: Path) -> Prepared:
    """Answers of one client in every phase; its own in that phase are among the valid ones."""
    halves, valid = [], []
    parties = Parties(random_inputs(4), 3)
    for phase in list(Phase)[:-1]:
        parties.run(until=phase)
        halves.append(parties.server)
    parties.run()
    valid = [parties.sent[phase][1] for phase in list(Phase)[:-1]]

    def read(data: bytes, number: int) -> None:
        if reason := halves[number].refusal(1, data):
            raise UserError(reason)

    return Prepared(valid, [lambda data, at=at: read(data, at) for at in range(len(halves))])  # type: ignore[misc]


def _secure_client(folder: Path) -> Prepared:
    """What a server asks one client in every phase."""
    parties, halves, valid = Parties(random_inputs(4), 3), {}, []
    for phase in list(Phase)[1:-1]:
        parties.run(until=phase)
        halves[phase] = parties.clients[1]
        valid.append(parties.server.request(1))
    numbers, key = parties.inputs[1], parties.signing[1]
    return Prepared(
        valid,
        [
            halves[Phase.SHARES].shared,
            lambda data: halves[Phase.MASKED].masked(data, numbers),
            lambda data: halves[Phase.VOTES].vote(data, key),
            halves[Phase.REVEALED].revealed,
        ],
    )


class _Connection:
    """A socket whose other side has said all it will say."""

    def __init__(self, request: bytes) -> None:
        self.request, self.answer = io.BytesIO(request), b""

    def makefile(self, mode: str, buffering: int) -> io.BytesIO:
        return self.request

    def sendall(self, data: bytes) -> None:
        self.answer += data

    def settimeout(self, seconds: float) -> None:
        pass


class _Server:
    """As much of a WatchServer as a request sees."""

    server_port, url = 80, "http://127.0.0.1:80/"

    def __init__(self, folder: Path) -> None:
        self.folder, self.parts = folder, {"/": (b"page", "text/html")}


def _http(folder: Path) -> Prepared:
    def read(data: bytes) -> None:
        connection = _Connection(data)
        _Handler(connection, ("127.0.0.1", 1), _Server(folder))  # type: ignore[arg-type]
        answer = connection.answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n") if answer.startswith(b"HTTP/") else (b"", b"", answer)
        known = (b"page", b'[{"name"', b"open http:", b"there is nothing else here", b"only GET is answered here", b"")
        assert any(body.startswith(one) for one in known), f"an answer of its own: {answer!r}"
        assert not head or b"Content-Security-Policy: default-src 'none'" in head
        if not answer.startswith(b"HTTP/1.0 200"):
            raise UserError("not answered")

    host = b"Host: 127.0.0.1:80\r\n\r\n"
    return Prepared([b"GET / HTTP/1.1\r\n" + host, b"GET /standing.json HTTP/1.0\r\n" + host], [read])


HTTP = text_with(
    "Host: evil\r\n", "\r\n\r\n", "POST", "HTTP/9", "Content-Length: 9\r\n", "%2e%2e/", "x: " + "y" * 70_000
)

MESSAGES = (
    Target("message", "a message, safetensors", safetensors, _message),
    Target("array", "an array of a reply, NumPy's format", array, _array),
    Target("facts", "facts and scores of a reply, JSON", json_tree, _facts),
    Target("greeting", "who a node says it is, JSON", json_tree, _greeting),
    Target("request", "what a server asks a site, JSON", json_tree, _request_to_a_site),
    Target("secure answer", "answers in a secure aggregation", changed_bytes, _secure_server, share=0.2),
    Target("secure request", "questions in a secure aggregation", changed_bytes, _secure_client, share=0.2),
    Target("http", "requests to `fedbnn watch`", HTTP, _http),
)
