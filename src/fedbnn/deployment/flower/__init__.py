"""The same federation on Flower: simulated on one machine (Ray), or deployed among real parties.

Needs the extra `fedbnn[flower]`. The client's half is `Node` of `fedbnn.deployment`, the server's half `Server`; what
is here carries messages between them.
"""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # a federation of hospitals reports to nobody unasked
