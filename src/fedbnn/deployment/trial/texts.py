"""What stands in the files of a federation's folder, with gaps for what differs: the app's, the server's, a site's."""

PYPROJECT = """\
# The Flower app of this federation. Its code is one line a half: what runs is the fedbnn that each party has installed.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedbnn-federation"
version = {version}
description = "A federation of fedbnn"
license = "Apache-2.0"
dependencies = []  # every party installs fedbnn[flower] itself; Flower is to install nothing

[tool.hatch.build.targets.wheel]
packages = ["federation"]

[tool.flwr.app]
publisher = "fedbnn"
fab-include = ["federation/*.py"]  # nothing else of this folder may travel to sites

[tool.flwr.app.components]
serverapp = "federation.server_app:app"
clientapp = "federation.client_app:app"

[tool.flwr.app.config]
server = {server}  # the server's folder, on the server's host
"""

IGNORED = """\
# Flower looks here too: nothing of these folders may travel to sites, and nothing of them belongs into a repository.
/server/
/sites/
/loopback/
/loopback.lock
"""

SERVER = """\
# How patient the server is. It is read when a run starts; what is computed is in terms.json.

# seconds to wait until every site has been there once, before the first round
wait = 3600

# seconds a site has for its turn; the round goes on without one that is late
round_timeout = 3600

# good replies that a round needs; with fewer it is held again
quorum = 1

# models of your own ("package.module:factory") that the server may import because a site names them; needed only for
# methods that average weights
models = []

# methods of your own ("package.module:Class") that the terms may name
methods = {methods}

# The architecture that all sites must have: one that says it runs another is refused. For methods that average weights,
# which cannot start with two of them.
{model}
"""

MODEL = """\
[model]
name = {name}
options = {options}{more}"""

SITE = """\
# A site's own file. Only its owner writes here: no server can change any of it.
# Paths are relative to the folder of this file.

# as it stands in terms.json
name = {name}

# your copy of what all parties agreed on; a run under other terms is refused
terms = "terms.json"

# the public, unlabelled inputs that were agreed on; checked against the terms
alignment = "alignment.npz"

# your models and the ledger of what was released: back it up, and keep it as long as you keep the records
state = "state"

# where to compute: cpu, cuda, cuda:1, mps or auto
device = {device}

# May scores and diagnostics leave? They tell of your records, whatever protects the rest.
# auto: only where the terms promise no privacy; or no; or yes, which is refused where they do
share_metrics = "auto"

# methods from outside ("package.module:Class") that the terms may name: their code runs on your records
methods = {methods}
{signs}
# Your records. They never leave.
[data]
# {targets}
# For trying out: records that were dealt from {source}. Arrays x_train, y_train and, to be scored, x_test, y_test.
source = "npz"
path = "records.npz"

{own}
# test_fraction = 0.25                 # about this share of the records is held out to score your model on

# Your own architecture (see `fedbnn models`), or your own code as "package.module:factory"
[model]
name = {model}
options = {options}{more}

# Your cap: the most that everything that is ever released from your records may cost, in this run and all others.
# Terms may ask for less. Terms that ask for more, or that protect nothing, are refused.
{privacy}
"""

OWN_NUMBERS = """\
# Your own table instead of the two lines above: a header row, one record a line, features in the units agreed on.
# source = "csv"
# path = "/data/patients.csv"
{column}
# columns = ["age", "sex", "chol"]     # the features, in the order agreed on: {shape} of them"""

OWN_COLUMNS = """\
# Your own table instead of the two lines above: a header row, one record a line, with these columns in any order:
{columns}
# source = "csv"                       # or parquet
# path = "/data/patients.csv"
{column}
# columns = [...]                      # what yours are called, in the order above, where names differ
# units = {{{units}}}   # what yours are in: a run with others is refused
# decimal = ","                        # and delimiter, encoding and missing, if need be"""

COLUMN = "# target = {name:28}# the column that holds the {what}, by its name{more}"

SIGNING_KEY = "signing.key"
SIGNS = f"""
# Your private key for secure aggregation; its public half stands in the terms. This one was made for trying out: make
# your own with `fedbnn flower signing-key`, and let no other party see it.
signing_key = "{SIGNING_KEY}"
"""

CAP = """\
[privacy]
epsilon = {epsilon}
delta = {delta}
# the largest number of sites that hold one and the same record
multiplicity = {multiplicity}
# disjoint = true    # only if your sets of records, as they change from run to run, are of different people"""

NO_CAP = """\
# These terms promise nothing about records, so a cap would refuse them.
# [privacy]
# epsilon = 3.0
# delta = 1e-5
# multiplicity = 1                     # the largest number of sites that hold one and the same record"""
