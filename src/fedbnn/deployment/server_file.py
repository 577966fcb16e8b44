"""The server's own file, server.toml: how long it waits, and for how many."""

from pathlib import Path

from pydantic import Field, field_validator

from fedbnn.base.settings import read_toml, settings
from fedbnn.federation.server import PATIENCE
from fedbnn.models.architectures import ModelSettings


@settings
class ServerSettings:
    """How patient the server is. What is computed is in the terms."""

    wait: float = Field(default=3600.0, gt=0, description="seconds to wait until every site has been there once")
    round_timeout: float = Field(
        default=3600.0, gt=0, description="seconds a site has for its turn; the round goes on without one that is late"
    )
    models: tuple[str, ...] = Field(
        default=(),
        description="models of your own ('package.module:factory') that the server may import because a site names "
        "them; only methods that average weights build a site's model at the server",
    )
    model: ModelSettings | None = Field(
        default=None,
        description="the architecture that every site must have (name and options): a site that says it runs another "
        "is refused by name; for methods that average weights, which one other architecture would keep from starting",
    )
    methods: tuple[str, ...] = Field(
        default=(), description="methods from outside ('package.module:Class') that the terms may name"
    )
    patience: int = Field(
        default=PATIENCE,
        ge=1,
        description="a site whose replies are not as agreed so many times in a row is set aside for the run",
    )
    quorum: int = Field(default=1, ge=1, description="good replies a round needs; with fewer it is held again")

    @field_validator("model")
    @classmethod
    def _buildable(cls, model: ModelSettings | None) -> ModelSettings | None:
        if model is not None and model.body:
            raise ValueError(f"body = '{model.body}': the server has no features of a body; leave it out")
        return model


def read_server(path: Path) -> ServerSettings:
    """The settings of a server.toml; without the file, the defaults."""
    return read_toml(ServerSettings, path) if path.exists() else ServerSettings()
