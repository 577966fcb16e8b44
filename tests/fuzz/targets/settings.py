"""What people write: configurations, the files of sites and servers, plans; and what is agreed on: terms, codings."""

from pathlib import Path

from fedbnn.data.tables.coding import Coding, ColumnCode
from fedbnn.deployment.server_file import read_server
from fedbnn.deployment.site_file import read_site
from fedbnn.deployment.terms import Terms, read_terms
from fedbnn.privacy.secure.signing import make_signing_key, read_signing_key
from fedbnn.reproduce.cells import expand
from fedbnn.reproduce.plan import load as load_plan
from fedbnn.runs.config import PRESETS, default_toml, load_config
from tests.deployment.deployment_sample import small_terms
from tests.deployment.regression_sites import DIABETES
from tests.fuzz.mutations import changed_bytes, json_tree, text_with, toml_tree
from tests.fuzz.targets.target import Prepared, Target, from_file
from tests.reproduce.conftest import PLAN, write_plan

SITE = """
name = "a"
share_metrics = "yes"
[data]
source = "csv"
path = "records.csv"
target = "sick"
[model]
name = "mlp"
options = {hidden = [8]}
[privacy]
epsilon = 1
delta = 1e-5
"""
SERVER = 'wait = 3.5\nquorum = 2\nmethods = ["a.b:C"]\n[model]\nname = "mlp"\noptions = {hidden = [8]}\n'


def _config(folder: Path) -> Prepared:
    presets = [file.read_bytes() for file in sorted(PRESETS.glob("*.toml"))]
    return Prepared(
        [default_toml().encode(), b'preset = "table"\n[data]\npath = "a.csv"\ntarget = "b"\n', *presets],
        from_file(folder / "mine.toml", load_config),
    )


def _overrides(folder: Path) -> Prepared:
    told = [b"rounds=3", b'models=[{name="mlp"}]', b"methods.fedbnn.gamma=0.5", b"data.path=a.csv"]
    return Prepared(told, [lambda data: load_config(None, [data.decode(errors="surrogateescape")])])


def _site(folder: Path) -> Prepared:
    return Prepared([SITE.encode()], from_file(folder / "site.toml", read_site))


def _server(folder: Path) -> Prepared:
    return Prepared([SERVER.encode()], from_file(folder / "server.toml", read_server))


def _terms(folder: Path) -> Prepared:
    private = small_terms("fedbnn", "privacy.mechanism=dp_teacher", "privacy.features=fourier")
    numbers = small_terms("fedbnn", *DIABETES)
    texts = [one.to_json().encode() for one in (small_terms(), small_terms("fedavg"), private, numbers)]
    return Prepared(texts, [*from_file(folder / "terms.json", read_terms), lambda data: Terms.from_json(data).chosen()])


def _plan(folder: Path) -> Prepared:
    write_plan(folder)

    def read(file: Path) -> None:
        plan = load_plan(file.parent)
        for study in list(plan.contents.studies)[:2]:
            expand(plan, study, folder / "runs")

    return Prepared([PLAN.encode()], from_file(folder / "plan.toml", read))


def _coding(folder: Path) -> Prepared:
    columns = (
        ColumnCode("a", "number", low=0, high=9),
        ColumnCode("b", "category", values=("x", "y")),
        ColumnCode("c", "date", low=1900, high=2030, format="%Y-%m-%d"),
        ColumnCode("d", "boolean", values=("no", "yes")),
        ColumnCode("e", "id"),
    )
    return Prepared([Coding(columns).to_json().encode()], [lambda data: Coding.from_json(data, "it").features])


def _signing_key(folder: Path) -> Prepared:
    make_signing_key(folder / "signing.key")
    return Prepared([(folder / "signing.key").read_bytes()], from_file(folder / "signing.key", read_signing_key))


SETTINGS = (
    Target("config", "a configuration, TOML", toml_tree, _config, own_code=True),
    Target("set", "an override, KEY=VALUE", text_with("[[", "{a=1}", "..", "= =", '"""'), _overrides, own_code=True),
    Target("site", "a site's site.toml", toml_tree, _site),
    Target("server", "a server's server.toml", toml_tree, _server),
    Target("terms", "terms of a deployment, JSON", json_tree, _terms),
    Target("plan", "a plan of studies, TOML", toml_tree, _plan, share=0.2, own_code=True),
    Target("preprocessing", "how cells become inputs, JSON", json_tree, _coding),
    Target("signing key", "a key in hex", changed_bytes, _signing_key, share=0.2),
)
