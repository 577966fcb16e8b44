"""FedAvg (McMahan, Moore, Ramage, Hampson, Agüera y Arcas 2017): clients train the server's model, the server averages.

    w_i <- E local epochs on client i's records from w;    w <- sum_i (n_i / sum n) w_i

Scored are the average (global), and each client's w_i before it is averaged (fine-tuned: the global model of the round
before, after the client's local training). Unlike the paper, clients use Adam, begun anew in each round, so that local
training costs and does the same as in every other method here.
"""

from fedbnn.base.settings import settings
from fedbnn.methods.averaging import Averaging, SharedPoint
from fedbnn.methods.point import Point


@settings
class FedAvg(SharedPoint, Averaging[Point]):
    """Federated averaging of one network's weights."""

    name = "fedavg"
    summary = "the average of all clients' weights, one architecture"
    regression = True
