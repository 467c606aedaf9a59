"""All settings of the server, read once at start from environment variables with the prefix DARKROOM_."""

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from sqlalchemy import URL, make_url

from pipelines.protocol.messages import DeviceChoice
from server.data_folders import default_folder, default_home

PREFIX = "DARKROOM_"
DATABASE = "darkroom.db"  # in the home
CrashPoint = Literal["after-hold", "after-store", "before-capture-commit", "after-capture-commit"]


def _match_pattern(pattern: str, example: str) -> AfterValidator:
    """Return a check of a text by a pattern, whose error shows the example."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise PydanticCustomError("unlike", "Write it like {example}", {"example": example})
        return value

    return AfterValidator(check)


BaseUrl = Annotated[str, _match_pattern(r"https?://[^/\s]+(/[^\s?#]*)?", "https://pictures.example")]
Origin = Annotated[str, _match_pattern(r"\*|[a-z][a-z0-9+.-]*://[^/\s]+", "https://pictures.example, or * for all")]
HouseGroup = Annotated[str, _match_pattern(r".+=[^=]+", "design=alpha-image-per-call")]
DatabaseUrl = Annotated[
    str,
    _match_pattern(
        r"|sqlite:///.+|postgresql\+psycopg://.+", "postgresql+psycopg://USER:PASSWORD@HOST/NAME or sqlite:///FILE"
    ),
]


def _split_list(value: object) -> object:
    """Split a list that is written as text with commas. Other values stay as they are."""
    return [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value


class Settings(BaseSettings):
    """The defaults suit a single machine, reachable from itself only."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore")

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for every interface."""
    port: int = Field(8080, ge=0, le=65535)
    """Port to listen on."""
    home: Path = Field(default_factory=default_home)
    """Folder of the database, results, logs and keys: `darkroom-home` in a checkout; of an installed wheel `darkroom`
    in your data folder, such as ~/.local/share."""
    weights: Path = Field(default_factory=lambda values: default_folder("weights", values["home"]))
    """Base folder of the catalog's checkpoint paths; of an installed wheel in the home."""
    model_configs: Path = Field(default_factory=lambda values: default_folder("model_configs", values["home"]))
    """The catalog: a TOML file per checkpoint; of an installed wheel in the home."""
    database: DatabaseUrl | None = None
    """A SQLAlchemy URL of SQLite or PostgreSQL. Unset: SQLite in the home."""
    storage: str | None = None
    """Where finished images are: a folder, or the URL of an object store, such as s3://bucket/prefix. Unset: `results`
    in the home."""
    gateway_url: BaseUrl | None = None
    """The address by which the other servers of the database reach this one, such as http://10.0.0.2:9090. The server
    listens there, too. Leave it unset for a single server."""
    cluster_secret: SecretStr | None = Field(None, min_length=32)
    """The secret with which the servers of a database sign their requests to each other, the same for all. The secret
    of webhooks is derived from it. At least 32 characters."""
    cluster: Path | None = None
    """cluster.toml: the engines that a Ray cluster has for all its servers. The server uses them in place of workers of
    its own, and connects to the Ray that runs on its machine, or to that of RAY_ADDRESS."""
    cdn_url: BaseUrl | None = None
    """Public base URL of the results, if a proxy or CDN serves them. Unset: /cdn on the server's own address."""
    public_urls: Annotated[tuple[BaseUrl, ...], NoDecode, BeforeValidator(_split_list)] = ()
    """Base URLs by which clients and proxies reach the server, separated by commas. The URLs of results begin with the
    one whose host is the request's, else with the first."""
    cors_origins: Annotated[tuple[Origin, ...], NoDecode, BeforeValidator(_split_list)] = ("*",)
    """Origins of the web pages that may call the API from a browser, separated by commas; * for all, empty for none."""

    max_n: int = Field(10, ge=1)
    """Maximum number of images in one request."""
    answers_with_bytes: bool = False
    """Whether an image response has the bytes (`b64_json`) beside the URL, if the request sets no `response_format`."""
    json_edits: bool = False
    """Whether /v1/images/edits takes OpenAI's JSON body with `images`, beside a form."""
    links_in_chats: bool = False
    """Whether the text of a chat response links its images, for clients that send back only the text of earlier
    responses, such as Open WebUI."""
    leave_out_pictures: bool = False
    """Whether the server leaves out images for a chat model without vision, and names them in x-darkroom-ignored,
    instead of refusing the request with 400."""
    max_queue: int = Field(64, ge=1)
    """Maximum number of image jobs waiting or running; one more gets 503."""
    max_queue_s: float = Field(900, gt=0)
    """Maximum estimated device time of those jobs for each image worker, in seconds; more gets 503."""
    max_queue_share_per_key: float = Field(0.75, gt=0, le=1)
    """The part of both queue limits that one key may take while others have jobs there; more gets 429. A key that comes
    when another has filled the queue has the rest beyond the limits. 1 for all of it."""
    max_running_per_key: int = Field(32, ge=1)
    """Maximum number of running calls (images, chats, responses) of a key without its own limit; one more gets 429."""
    max_json_mib: int = Field(64, ge=1)
    """Maximum size of a JSON body, in MiB; a larger one gets 413."""
    body_memory_mib: int = Field(1024, ge=1)
    """Maximum size of all bodies that are read or belong to running calls, in MiB; more wait, then get 503."""
    body_memory_per_key_mib: int = Field(256, ge=1)
    """The part of `DARKROOM_BODY_MEMORY_MIB` that one key may have; more wait, then get 429."""
    max_connections: int | None = Field(None, ge=1)
    """Maximum number of connections. Unset: half of the descriptors that the system allows, at most 10,000."""
    max_connections_per_address: int = Field(256, ge=1)
    """Maximum number of connections from one address that is no trusted proxy's."""
    request_timeout_s: float = Field(30, gt=0)
    """Time for the headers of a request, and for every 64 KiB of its body."""
    send_timeout_s: float = Field(300, gt=0)
    """How long a client may read nothing of its answer before its connection is closed."""
    chat_max_queue: int = Field(128, ge=1)
    """Maximum number of chats waiting or running; one more gets 503."""
    chat_cache_share: float = Field(0.15, gt=0, lt=1)
    """The part of the device's memory for the keys and values of chats that run, and of the beginnings of chats that
    are kept. Checkpoints share it in equal parts; a chat may take all of its checkpoint's part."""
    chat_cache_across_keys: bool = False
    """Whether a chat uses what was computed for a chat of another key that began alike. Then a caller can find out by
    time what others have asked."""
    job_time_limit_s: float = Field(900, gt=0)
    """Running time after which an image job gets 504, and time without a token after which a chat does. An image job
    that can't end in it gets 400."""
    keepalive_s: float = Field(15, gt=0)
    """How often a waiting stream sends a comment, and a JSON answer with keepalive a space, so that proxies do not
    close the connection."""
    retry_grace_s: float = Field(15, ge=0)
    """How long a call continues after an OpenAI SDK lost its connection: the SDK, or a loop around it, may send it
    again."""
    idempotency_s: float = Field(86_400, gt=0)
    """How long a call can be found by its Idempotency-Key or id, from its start."""
    lease_s: float = Field(60, gt=0, le=3600)
    """How long, in seconds, a hold lasts after its server stopped renewing it."""
    drain_s: float = Field(120, ge=0)
    """How long running calls may continue after SIGTERM; a second SIGTERM stops them at once."""
    worker_silence_s: float = Field(300, gt=0)
    """A worker that sends nothing, or makes no progress in any job, for this long is killed."""
    result_grace_s: float = Field(3600, gt=0)
    """Age in seconds at which a file of an image that no record needs goes to the trash of the storage."""
    results_keep_days: float | None = Field(None, gt=0)
    """Age in days at which an image goes to the trash of the storage; its charge stays. Unset: never."""
    trash_days: float = Field(7, gt=0)
    """Days after which a file in the trash is deleted. Until then `darkroom store put-back` brings it back."""
    calls_keep_days: float = Field(90, gt=0)
    """Age in days at which a row of the log of calls is deleted (its charge stays)."""
    keep_prompts: bool = True
    """Whether prompts and parameters are kept with calls and images, for their owner's gallery and for operators. If
    false, those that were kept before are removed."""
    mark_pictures: bool = True
    """Whether image files say in an XMP packet that a model made them."""
    c2pa_certificate: Path | None = None
    """A PEM file of the certificates with which images are signed by C2PA; needs the extra `[c2pa]`."""
    c2pa_key: Path | None = None
    """A PEM file of the certificate's private key."""
    logged_refusals_per_minute: int = Field(60, ge=0)
    """Refused calls of one key that get a row in the log of calls in a minute."""
    batch_folder: Path | None = None
    """A folder from which the batches of all keys may read their lines, by a path in it as `input_file_id`. Unset:
    lines come in requests alone."""
    responses_keep_days: float = Field(30, gt=0)
    """Age in days at which a stored response is deleted, or an unused conversation."""
    device: DeviceChoice = "auto"
    """Where models run: cuda, cpu, or auto for the GPU if this machine has one. The server never replaces a GPU that
    is lost or can't be used by the CPU."""
    engines: Literal["auto"] | Path = "auto"
    """The image workers and their devices: auto for one on each GPU, or a TOML file."""
    device_memory_gib: float | None = Field(None, gt=0)
    """Device memory for the weights of image checkpoints, in GiB. Unset: 80 % of it, and on small devices what leaves
    3.5 GiB to draw, less what chat models and classifiers need."""
    host_memory_gib: float | None = Field(None, gt=0)
    """Host memory in GiB for checkpoints that do not fit on their GPUs. Unset: half of it for those that wait there for
    others, and all but 4 GiB for those whose [runtime] leaves weights there."""
    idle_unload_s: float | None = Field(None, gt=0)
    """After so many seconds without a call a worker gives its device back: its process ends, and the next call starts
    it again. Unset: never."""
    preload: bool = True
    """Load every checkpoint at start, not at its first call."""

    oidc_issuer: BaseUrl | None = None
    """The OpenID Connect provider with whose accounts people may sign in to the console, such as https://login.example;
    needs the extra `[oidc]`. Unset: with keys alone."""
    oidc_client_id: str | None = None
    """The name of this server at the provider."""
    oidc_client_secret: SecretStr | None = None
    """The secret of this server at the provider. Unset: it is a public client, without one."""
    oidc_client_secret_file: Path | None = None
    """A file with that secret, in place of it."""
    oidc_scopes: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_list)] = ("openid", "profile", "email")
    """What is asked of the provider, separated by commas; some need another scope for groups."""
    oidc_groups_claim: str = "groups"
    """The claim with the groups of a person, also inside others, such as `realm_access.roles`."""
    oidc_groups: Annotated[tuple[HouseGroup, ...], NoDecode, BeforeValidator(_split_list)] = ()
    """Which groups of the provider may use which of the catalog, such as `design=alpha-image-per-call`, separated by
    commas; * for everybody, or for every model. Unset: everybody may use every model."""
    oidc_operators: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_list)] = ()
    """Groups of the provider whose members are operators in the console, separated by commas."""

    fetch: bool = False
    """Whether reference images may be fetched from https URLs."""
    fetch_timeout_s: float = Field(20, gt=0)
    """Time limit for one reference image, with its redirects."""

    webhooks: Literal["off", "public", "any"] = "off"
    """Where webhooks of background image calls may go: nowhere, to https URLs on the public internet, or to any URL."""

    moderation: Path | None = None
    """The moderation policy, a TOML file. Unset: no moderation."""

    proxy: BaseUrl | None = None
    """The HTTP proxy by which the server reaches all that has a public address: upstreams, an object store, a collector
    of traces, images to fetch, webhooks, the sign-in provider. Loopback and private addresses are reached directly,
    always. HTTP_PROXY and the like are not read."""

    tracing: BaseUrl | None = None
    """Base URL of a collector that takes OpenTelemetry's traces (OTLP over HTTP); no traces when unset."""
    log_json: bool = False
    """Write the log on stderr as JSON, not as text."""
    crash_at: CrashPoint | None = None
    """For tests: the crash point at which the server kills itself."""

    @property
    def database_url(self) -> URL:
        """Return the database's URL. A path is no part of a URL's text: it may have any letters."""
        return make_url(self.database) if self.database else URL.create("sqlite", database=str(self.home / DATABASE))

    @property
    def no_server_message(self) -> str:
        """Return the message of a command that finds no server, and where it looked."""
        given = "home" in self.model_fields_set
        home = f"{self.home}, which DARKROOM_HOME names" if given else f"{self.home} (DARKROOM_HOME is not set)"
        looked = home if self.database is None else f"{home}, and the database of DARKROOM_DATABASE"
        return (
            f"No server has run with these settings. Looked in: {looked}. Set them as the server has them; `darkroom "
            "serve` makes what is missing."
        )

    @property
    def local_url(self) -> str:
        """Return the server's base URL for clients on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def admin_key(self) -> Path:
        """Return the file with the secret for the admin routes."""
        return self.home / "admin-key"

    @property
    def webhook_secret(self) -> Path:
        """Return the file of which the keys' secrets for webhooks are made."""
        return self.home / "webhook-secret"

    @property
    def results(self) -> Path:
        """Return the home's own folder of finished images."""
        return self.home / "results"

    @property
    def images(self) -> str:
        """Return the place of finished images: a folder, or the URL of an object store."""
        return self.storage or str(self.results)

    @property
    def weight_digests(self) -> Path:
        """Return the file of the sums of checkpoints."""
        return self.home / "weight-digests.json"

    @property
    def thumbnails(self) -> Path:
        """Return the folder of small copies of results."""
        return self.home / "thumbnails"

    @property
    def pixels(self) -> Path:
        """Return the folder of decoded references, while their calls run."""
        return self.home / "pixels"


def unknown_settings(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return a line for each DARKROOM_ variable that no setting has, such as a misspelled one, which has no effect."""
    given = sorted(name.removeprefix(PREFIX) for name in environ if name.startswith(PREFIX))
    known = [field.upper() for field in Settings.model_fields]
    lines = []
    for name in given:
        if name not in known:
            similar = "".join(f" Is it {PREFIX}{match}?" for match in get_close_matches(name, known, n=1, cutoff=0.7))
            lines.append(f"{PREFIX}{name} is no setting and has no effect.{similar}")
    return lines
