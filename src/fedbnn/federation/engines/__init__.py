"""Where client halves run: in this process, or spread over worker processes on this machine."""

from fedbnn.federation.engines.engine import ClientFailure, Engine, Reply, Site, by_index
from fedbnn.federation.engines.inprocess import InProcess
from fedbnn.federation.engines.pool import WorkerPool

__all__ = ["ClientFailure", "Engine", "InProcess", "Reply", "Site", "WorkerPool", "by_index"]
