"""Which attack a configuration gets."""

from typing import Any

from fedbnn.audit.attack import Attack
from fedbnn.audit.exchange_attacks import attack_on_exchange
from fedbnn.audit.weights_attacks import attack_on_weights
from fedbnn.base.errors import UserError
from fedbnn.federation.method import Method
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.exchange import Exchange
from fedbnn.methods.noisy_sums import NoisySums


def attack_on(method: Method[Any, Any], client: Client, roster: Roster, *, facts: bool = False) -> Attack:
    """The attack on a client that works with this method; `facts`: whether diagnostics leave beside the arrays."""
    if isinstance(method, Exchange):
        return attack_on_exchange(method, client, facts)
    if isinstance(method, NoisySums):
        return attack_on_weights(method, client, roster, facts)
    raise UserError(
        f"method '{method.name}': there is no attack on it yet (there is on fedbnn, fedbnn_paper, fedmd, dp_fedavg, "
        "dp_fedsgd and dp_scaffold)"
    )
