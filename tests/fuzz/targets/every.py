"""Every reader of what others wrote, by name."""

from tests.fuzz.targets.data import DATA
from tests.fuzz.targets.kept import KEPT
from tests.fuzz.targets.messages import MESSAGES
from tests.fuzz.targets.runs import RUNS
from tests.fuzz.targets.settings import SETTINGS

TARGETS = {target.name: target for target in (*SETTINGS, *MESSAGES, *KEPT, *RUNS, *DATA)}
