"""A worker process of the local engine: `python -m fedbnn.federation.engines.worker`, over its standard streams."""

import json
import os
import sys
import traceback
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

import torch
from pydantic import TypeAdapter

from fedbnn.base.errors import UserError
from fedbnn.base.imports import imported
from fedbnn.federation.engines import frames, handover
from fedbnn.federation.engines.engine import ClientFailure
from fedbnn.federation.engines.host import ClientHost
from fedbnn.federation.engines.lasting import LastingStates
from fedbnn.federation.message import Message
from fedbnn.federation.method import Method


def method_from(description: dict[str, Any]) -> Method[Any, Any]:
    """The method of this class and these settings."""
    cls = imported(description["class"], f"method {description['class']}")
    method = TypeAdapter(cls).validate_json(json.dumps(description["settings"]))
    if not isinstance(method, Method):
        raise TypeError(f"{description['class']} is not a Method")
    return method


class Worker:
    """Answers requests, one after the other, for the clients it was given."""

    def __init__(self, output: IO[bytes]) -> None:
        self.output = output
        self.host: ClientHost | None = None
        self.states: LastingStates | None = None

    def answer(self, header: dict[str, Any], payload: bytes) -> None:
        """Do one request; every result is a frame of its own, and a last frame says 'done'."""
        request = header["request"]
        if self.states is not None:
            self.states.settle()
            self.states.request = header["number"]
        if request == "start":
            sys.path[:] = header["sys_path"]
            most = header["in_memory"]
            sites = handover.Handed(Path(header["sites"]), header["clients"], most)
            device = torch.device(header["device"])
            method = method_from(header["method"])
            kind, answered = method.client_state, header.get("answered", ())
            self.states = LastingStates(kind, most, Path(header["states"]), device, header["number"], answered)
            self.host = ClientHost(method, sites, header["seed"], device, self.states, header["share"])
        elif request == "update":
            message = Message.from_bytes(payload)
            for client in header["clients"]:
                reply = self._started.update(client, header["round"], message)
                answer = {"client": client, "info": dict(reply.info), "seconds": reply.seconds}
                self._send(answer, reply.message.to_bytes())
        elif request == "lose":
            message = Message.from_bytes(payload)
            for client in header["clients"]:
                self._started.update(client, header["round"], message, keep=False)
                self._send({"client": client})
        elif request == "evaluate":
            message = Message.from_bytes(payload)
            for client in header["clients"]:
                scores = self._started.evaluate(client, header["round"], message, header["foreign"])
                self._send({"client": client, "evaluation": {name: one.to_dict() for name, one in scores.items()}})
        elif request == "predict":
            sent = dict(Message.from_bytes(payload).arrays)
            x = sent.pop("x").clone()
            message = Message({name.removeprefix("message."): array for name, array in sent.items()})
            prediction = self._started.predict(
                header["client"], x, header["round"], message, header["variant"], header["prior"]
            )
            arrays = {part.name: getattr(prediction, part.name) for part in fields(prediction)}
            known = {name: array for name, array in arrays.items() if array is not None}
            self._send({"client": header["client"]}, Message(known).to_bytes())
        elif request == "leave":
            for client in header["clients"]:
                del self._started.states[client]
        elif request == "take":
            for client in header["clients"]:
                self._started.states.take(client)
        elif request == "save":
            self._started.save(Path(header["folder"]))
        elif request == "load":
            self._started.load(Path(header["folder"]))
        self._send({"done": request})

    @property
    def _started(self) -> ClientHost:
        if self.host is None:
            raise RuntimeError("the worker has not been started")
        return self.host

    def _send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        frames.write(self.output, header, payload)


def main() -> None:
    torch.set_num_threads(1)
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a user's model prints must not land between the frames
    worker = Worker(output)
    while (frame := frames.read(sys.stdin.buffer)) is not None:
        try:
            worker.answer(frame.header, frame.payload)
        except UserError as error:
            frames.write(output, {"user_error": str(error)})
        except BrokenPipeError:
            return  # the engine's process is gone; there is nobody left to tell
        except ClientFailure as error:
            frames.write(output, {"failure": str(error)})
        except Exception:
            frames.write(output, {"failure": f"a worker failed:\n{traceback.format_exc()}"})


if __name__ == "__main__":
    main()
