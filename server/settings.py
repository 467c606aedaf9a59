"""Everything an operator can set, read once from the environment (prefix DARKROOM_) at start."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints
from pydantic_settings import BaseSettings, SettingsConfigDict

REPOSITORY = Path(__file__).resolve().parent.parent
BaseUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^/\s]+(/[^\s?#]*)?$")]
CrashPoint = Literal["after-hold", "after-store", "before-capture-commit", "after-capture-commit"]


class Settings(BaseSettings):
    """Defaults suit one machine that only its owner can reach."""

    model_config = SettingsConfigDict(env_prefix="DARKROOM_", extra="ignore")

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for every interface.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on.")
    home: Path = Field(REPOSITORY / "darkroom-home", description="Database, results, logs and the first key.")
    weights: Path = Field(REPOSITORY / "weights", description="Where checkpoint paths of the catalog start.")
    model_configs: Path = Field(REPOSITORY / "model_configs", description="The catalog: a TOML file per checkpoint.")
    database: str | None = Field(None, description="SQLAlchemy URL; a SQLite file in the home when unset.")
    cdn_url: BaseUrl | None = Field(
        None,
        description="Public address of the results, with path, if a proxy or CDN serves them; "
        "when unset, /cdn on the address that the request came to.",
    )

    max_n: int = Field(10, ge=1, description="Most pictures in one call.")
    max_queue: int = Field(64, ge=1, description="Image jobs waiting or running; one more is answered 503.")
    max_queue_s: float = Field(
        900, gt=0, description="Estimated work of those jobs, in seconds of device time; more is answered 503."
    )
    max_running_per_key: int = Field(
        32,
        ge=1,
        description="Calls (images, chats, responses) that a key may have at once, unless it has a limit of its own; "
        "one more is answered 429.",
    )
    chat_max_queue: int = Field(128, ge=1, description="Chats waiting or running; one more is answered 503.")
    job_time_limit_s: float = Field(900, gt=0, description="Running time of one image or chat before it ends with 504.")
    keepalive_s: float = Field(
        15,
        gt=0,
        description="How often a waiting stream sends a comment, and a kept-alive JSON answer a space, so that no "
        "proxy cuts them.",
    )
    retry_grace_s: float = Field(
        15,
        ge=0,
        description="How long a call goes on for an OpenAI SDK whose connection was cut, which will try again.",
    )
    idempotency_s: float = Field(
        86_400, gt=0, description="How long an Idempotency-Key and a call's id are known, from the call's beginning."
    )
    lease_s: float = Field(60, gt=0, description="How long a hold outlives a server that stopped renewing it.")
    drain_s: float = Field(
        120, ge=0, description="How long running calls may go on after SIGTERM; a second SIGTERM ends them at once."
    )
    worker_silence_s: float = Field(
        300, gt=0, description="A worker that says nothing, or gets on with no job, for this long is killed as stuck."
    )
    result_grace_s: float = Field(3600, gt=0, description="Age at which a file that no record names is swept.")
    results_keep_days: float | None = Field(
        None, gt=0, description="Age in days at which a picture is deleted; its charge stays. Never when unset."
    )
    responses_keep_days: float = Field(30, gt=0, description="Age in days at which a stored response is deleted.")
    device_memory_gib: float | None = Field(
        None, gt=0, description="Memory for image checkpoints on the device; 80 % of it when unset."
    )
    host_memory_gib: float | None = Field(
        None, gt=0, description="Host memory for checkpoints that a GPU has no room for; half of it when unset."
    )
    preload: bool = Field(True, description="Load every checkpoint at start instead of at its first call.")

    fetch: bool = Field(False, description="Whether reference images may be fetched from https URLs.")
    fetch_timeout_s: float = Field(20, gt=0, description="Time for one reference image, redirects included.")

    moderation: Path | None = Field(None, description="The moderation policy, a TOML file; nothing is refused without.")

    log_json: bool = Field(False, description="Log lines as JSON instead of for reading.")
    crash_at: CrashPoint | None = Field(None, description="Testing only: the server kills itself at this point.")

    @property
    def database_url(self) -> str:
        """The database to use."""
        return self.database or f"sqlite:///{self.home / 'darkroom.db'}"

    @property
    def local_url(self) -> str:
        """The server's address, as this machine reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def admin_key(self) -> Path:
        """The file with the secret that the admin routes ask for."""
        return self.home / "admin-key"

    @property
    def results(self) -> Path:
        """Where finished pictures are stored."""
        return self.home / "results"
