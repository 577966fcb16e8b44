"""The server's half on Flower's Message API: one strategy for every method.

Round n of ours is one round of Flower's: `configure_train` sends what the method broadcasts, `aggregate_train` lets in
the replies that are as agreed and gives them to the method, `configure_evaluate` and `aggregate_evaluate` ask for
scores where the round is to be scored. Where a method's round takes several exchanges, each is a round of Flower's, and
only the last is followed by scores. A reply that is not as agreed, late or missing is dropped and named, and the
round goes on with the others; a round that fewer than the server's `quorum` of sites answered is held again.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, MessageType, MetricRecord
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedbnn.deployment.flower.attendance import Attendance
from fedbnn.deployment.flower.grid import WatchedGrid
from fedbnn.deployment.flower.replies import Away, Failed, Sent, ignore, line, scores_by, sent_by
from fedbnn.deployment.flower.wire import packed
from fedbnn.deployment.terms import Terms
from fedbnn.federation.evaluation import Scored
from fedbnn.federation.faults import SILENT
from fedbnn.federation.intake import SPOILS, joined
from fedbnn.federation.loop import Listener, Round, Turn
from fedbnn.federation.message import BadMessage, Message, upload_bytes
from fedbnn.federation.server import Server

Finished = Callable[[Round], None]
"""Called with what happened in a round when it is finished, scores included."""

ASK_AGAIN = 2.0  # seconds between looks at who is there
GREETING = 120.0  # seconds a node has to say who it is
_ACTIVITIES = {MessageType.TRAIN: "update", MessageType.EVALUATE: "evaluate"}


class FederationStrategy(Strategy):
    """Drives a `Server` over Flower's nodes; made for one run, which it may take up where it was left.

    Attributes:
        server: the method's server half.
        attendance: which node speaks for which site.

    """

    def __init__(
        self,
        terms: Terms,
        server: Server,
        attendance: Attendance,
        *,
        timeout: float = 3600.0,
        tell: Callable[[str], None] = print,
        finished: Finished = lambda _: None,
        went_on: Callable[[], None] = lambda: None,
        listener: Listener = lambda *_: None,
        failed: Failed = ignore,
    ) -> None:
        self.server = server
        self.attendance = attendance
        self._terms = terms
        self._timeout = timeout  # seconds a site has for its turn
        self._listener = listener
        self._failed = failed
        self._tell = tell
        self._finished = finished
        self._went_on = went_on  # called after each exchange that is not its round's last
        self._set_aside: list[int] = []  # in the round that is held
        self._so_far: dict[int, Turn] = {}  # of a round that takes several exchanges
        self._fell_short = 0  # exchanges of the round that were held again
        self._asked: dict[int, FlowerMessage] = {}
        self._sent: dict[int, Message] = {}
        self._turns: dict[int, Turn] | None = None  # of the round that is to be scored; None: it is held again
        self._started = 0.0

    @property
    def rounds_left(self) -> int:
        """Rounds that are still to be held, the warm-up included."""
        return self._terms.rounds - self.server.round_number

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[FlowerMessage]:
        self._started = time.perf_counter()
        number = self.server.round_number + 1
        wanted = self.server.asked
        self._wait_for_quorum(grid, wanted)
        there = self.attendance.nodes
        for client in wanted:
            if client not in there:
                self._tell(f"round {number}: '{self._terms.sites[client]}' is not there")
        self._sent = self.server.messages([client for client in wanted if client in there])
        return self._ask(MessageType.TRAIN, number, self._sent)

    def aggregate_train(
        self, server_round: int, replies: Iterable[FlowerMessage]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        number = self.server.round_number + 1
        sent: dict[int, Sent] = {}
        rejected: dict[int, str] = {}
        away: list[int] = []
        for client, reply in self._by_client(replies):
            sent[client] = Sent(Message(), {}, 0.0)
            if reply is None:
                rejected[client] = SILENT
                away.append(client)
                continue
            try:
                most = upload_bytes(self.server.expected(client))
                sent[client] = sent_by(reply, most, self._failed)
                if refusal := self.server.refusal(client, sent[client].message):
                    rejected[client] = line(refusal)
            except BadMessage as error:
                rejected[client] = str(error)
                if isinstance(error, Away):
                    away.append(client)
        accepted = {client: one.message for client, one in sent.items() if client not in rejected}
        needed = max(self.server.needed, min(1, len(accepted)))  # where every one spoils it, it is held again
        good = self._finish(accepted, needed, rejected)
        for client, reason in sorted(rejected.items()):
            self._tell(f"round {number}: the reply of '{self._terms.sites[client]}' is dropped: {reason}")
        new = self.server.judge(sent.keys() - rejected.keys(), [client for client in rejected if client not in away])
        for client in new:
            self._tell(
                f"round {number}: '{self._terms.sites[client]}' is set aside for the rest of the run: "
                f"{self.server.patience} replies in a row were not as agreed"
            )
        self._set_aside += new
        self._turns = None
        if good < needed:
            self._fell_short += 1
            self.server.fell_short(needed, f"; not there: {', '.join(self.attendance.missing) or 'nobody'}")
            self._tell(f"round {number} is held again: {good} good replies, {needed} are needed")
        else:
            for client, one in sent.items():
                size, reason = self._sent[client].nbytes, rejected.get(client, "")
                turn = Turn(one.info, one.message.nbytes, size, one.seconds, reason)
                self._so_far[client] = self._so_far[client].and_then(turn) if client in self._so_far else turn
            if self.server.round_number == number:
                self._turns, self._so_far = dict(sorted(self._so_far.items())), {}
            else:
                self._went_on()
        return None, MetricRecord({"accepted": good, "asked": len(sent)})

    def _finish(self, accepted: Mapping[int, Message], needed: int, rejected: dict[int, str]) -> int:
        """Finish the exchange if enough replies are good; how many are. Those that spoil it join the rejected."""
        if len(accepted) < needed:
            return len(accepted)
        state, spoilt = joined(self.server, accepted)
        rejected.update(dict.fromkeys(spoilt, SPOILS))
        good = len(accepted) - len(spoilt)
        if state is None and not accepted:
            self.server.after(accepted)  # the method cannot do without any, and its own error says so
        if state is not None and good >= needed:
            self.server.finish(state)
        return good

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[FlowerMessage]:
        number = self.server.round_number
        last = number == self._terms.rounds
        if self._turns is None or not (last or number % self._terms.evaluate_every == 0):
            return self._ask(MessageType.EVALUATE, number, {})
        there = sorted(self.attendance.nodes)
        return self._ask(MessageType.EVALUATE, number, self.server.messages(there), foreign=last)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[FlowerMessage]) -> MetricRecord | None:
        scores: dict[int, Mapping[str, Scored]] = {}
        for client, reply in self._by_client(replies):
            name = self._terms.sites[client]
            try:
                if reply is None:
                    self._tell(f"the scores of '{name}' are missing: {SILENT}")
                elif shared := scores_by(reply, self._failed, regression=self._terms.regression):
                    scores[client] = shared
            except BadMessage as error:
                self._tell(f"the scores of '{name}' are dropped: {error}")
        if self._turns is not None:
            seconds = time.perf_counter() - self._started
            scored, aside = dict(sorted(scores.items())), tuple(self._set_aside)
            self._finished(Round(self.server.round_number, self._turns, scored, seconds, aside, self._fell_short))
            self._turns, self._set_aside, self._fell_short = None, [], 0
        return None

    def on_reply(self, reply: FlowerMessage) -> None:
        """Pass on to the listener that a client is done."""
        number = self.server.round_number
        for client, sent in self._asked.items():
            if sent.metadata.message_id == reply.metadata.reply_to_message_id:
                kind = sent.metadata.message_type
                self._listener(_ACTIVITIES[kind], number + (kind == MessageType.TRAIN), client)

    def run_rounds(self, grid: Grid) -> None:
        """All rounds that are left."""
        watched = cast(Grid, WatchedGrid(grid, self.on_reply))
        while self.rounds_left:
            self.start(watched, ArrayRecord(), num_rounds=self.rounds_left, timeout=self._timeout)

    def evaluate(self, grid: Grid) -> None:
        """Score the last round again, whose scores were lost with the server's process."""
        self.attendance.greet(grid, min(self._timeout, GREETING))
        self._turns, self._started = {}, time.perf_counter()
        messages = self.configure_evaluate(0, ArrayRecord(), ConfigRecord(), grid)
        watched = WatchedGrid(grid, self.on_reply)
        self.aggregate_evaluate(0, watched.send_and_receive(messages, timeout=self._timeout))

    def _wait_for_quorum(self, grid: Grid, wanted: Sequence[int]) -> None:
        """Come back when enough of the wanted sites are there, or after the time that a turn may take."""
        end = time.monotonic() + self._timeout
        while True:
            self.attendance.greet(grid, min(self._timeout, GREETING))
            there = sum(client in self.attendance.nodes for client in wanted)
            if there >= min(self.server.quorum, len(wanted)) or time.monotonic() > end:
                return
            time.sleep(min(ASK_AGAIN, self._timeout))

    def summary(self) -> None:
        """Nothing beyond what is told of every round."""

    def _ask(self, kind: str, number: int, messages: Mapping[int, Message], **more: Any) -> list[FlowerMessage]:
        facts = {"round": number, "terms": self._terms.digest, **more}
        contents = {id(message): packed(message, facts) for message in messages.values()}  # equal ones only once
        asked = {
            client: FlowerMessage(
                contents[id(message)],
                dst_node_id=self.attendance.nodes[client],
                message_type=kind,
                ttl=self._timeout,  # a node that comes back later shall not find old questions
            )
            for client, message in messages.items()
        }
        self._asked = asked
        return list(asked.values())

    def _by_client(self, replies: Iterable[FlowerMessage]) -> list[tuple[int, FlowerMessage | None]]:
        """Every client that was asked, in order, with its reply if one came.

        By the message it replies to: where Flower replies for a node, it does so in its own name.
        """
        came = {reply.metadata.reply_to_message_id: reply for reply in replies}
        return [(client, came.get(sent.metadata.message_id)) for client, sent in sorted(self._asked.items())]
