"""A trial in which nodes and the link can be killed, and strangers come."""

import secrets

from fedbnn.deployment.trial.certificates import make_node_key
from fedbnn.deployment.trial.loopback import Loopback, Submission
from fedbnn.deployment.trial.processes import kill_marked


class FaultyLoopback(Loopback):
    def start_node(self, name: str) -> None:
        """Start a site's SuperNode again and wait until the link has taken it in."""
        assert not self.node_alive(name)
        self._start_node(name, self.work / "keys" / name)
        self._wait_for_node(name)

    def start_stranger(self, name: str) -> None:
        """Start a SuperNode with a key that nobody has told the link; nothing is waited for."""
        key = self.work / f"stranger-{secrets.token_hex(4)}"
        make_node_key(key)
        self._start_node(name, key)

    def node_output(self, name: str) -> str:
        """What a node has logged since it was started last."""
        return self._running[name].output()

    def node_alive(self, name: str) -> bool:
        return name in self._running and self._running[name].alive

    def kill_node(self, name: str) -> None:
        """End a node with no chance to say goodbye."""
        self._running.pop(name).kill()

    def kill_link(self) -> None:
        """End the link, and the run's server part with it, with no chance to say goodbye."""
        if self._link is not None:
            self._link.kill()
            self._link = None

    def kill_server(self) -> bool:
        """End the process of a run's server alone; whether there was one."""
        return bool(kill_marked(self._mark, "flwr-serverapp"))


def ended(submission: Submission, timeout: float) -> str:
    """Flower's word for how the run ended, e.g. finished:completed or finished:failed."""
    for _ in submission.lines(timeout):
        pass
    return submission.status()
