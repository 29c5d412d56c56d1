"""Settings of the gateway process: environment (``POINTSMAN_*``) and flags of the same names."""

from pathlib import Path
from typing import Final, Self

from pydantic import AliasChoices, Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from pointsman.api.protocol import names
from pointsman.api.v1alpha1.multimodal import MultimodalSpec
from pointsman.gateway.core.router import RouterName
from pointsman.process.settings import ProcessSettings

IMAGES: Final = MultimodalSpec()


class Settings(ProcessSettings):
    """Everything the gateway process can be told. Where workers are: ``endpoints_file``, or the Kubernetes API."""

    model_config = SettingsConfigDict(cli_prog_name="python -m pointsman.gateway")

    namespace: str = Field(default="default", description="namespace of the service")
    service: str = Field(description="name of the LLMService this gateway serves")
    service_uid: str | None = Field(
        default=None, description="uid of the LLMService; unset: read from the Kubernetes API"
    )
    gateway: str = Field(
        default="gateway",
        validation_alias=AliasChoices("POINTSMAN_GATEWAY", "POINTSMAN_POD_NAME", "gateway"),
        description="this gateway's own name in its report",
    )
    bind_host: str = Field(default="0.0.0.0", description="address to listen on")
    port: int = Field(default=names.GATEWAY_PORT, ge=0, le=65535, description="port to listen on; 0: any free port")
    metrics_port: int = Field(
        default=names.GATEWAY_METRICS_PORT,
        ge=0,
        le=65535,
        description="port of /metrics alone; 0 takes a free one; if it is taken, readers of the pod's address "
        "find them on port",
    )
    endpoints_file: Path | None = Field(
        default=None, description="workers from this YAML file, watched for changes, in place of the Kubernetes API"
    )
    control_token: SecretStr = Field(default=SecretStr(""), description="the service's token for the control API")
    nats_url: str | None = Field(
        default=None, description="NATS server for the workers' KV metrics; unset: the load of workers is unknown"
    )
    nats_user: str | None = Field(default=None)
    nats_password: SecretStr | None = Field(default=None)
    nats_ca_certificate: str = Field(
        default="", description="PEM, of the authority of a tls:// NATS server; empty: public authorities"
    )
    router: RouterName = Field(default=RouterName.TOKEN_LOAD, description="cost function of the router")
    router_seed: int | None = Field(default=None, description="seed of the router's random ties, for tests")
    kv_index_max_blocks: int = Field(
        default=4_000_000,
        ge=1,
        le=1_000_000_000,
        description=(
            "most KV blocks in the index, summed over workers (about 200 bytes each); a full index evicts "
            "blocks that no recent prompt used"
        ),
    )
    kv_index_expiration_seconds: float = Field(
        default=0.0,
        ge=0,
        le=86400,
        description="how long a use protects a KV block from eviction from the index; 0: until the next eviction pass",
    )
    patience_seconds: float = Field(
        default=10.0,
        ge=0,
        le=600,
        description="longest wait of a request for a routable worker; it is then rejected with 503",
    )
    max_held: int = Field(
        default=4096, ge=0, le=100_000, description="most requests queued by flow control; more are rejected with 429"
    )
    hold_seconds: float = Field(
        default=600.0, ge=0, le=3600, description="longest time of a request in the queue; it is then rejected with 429"
    )
    max_attempts: int = Field(default=8, ge=1, le=100, description="most attempts for one answer")
    connect_timeout_seconds: float = Field(default=2.0, gt=0, le=60)
    inactivity_timeout_seconds: float = Field(
        default=120.0,
        gt=0,
        le=3600,
        description="longest time without data in a stream that has begun; another worker then resumes it",
    )
    answer_timeout_seconds: float = Field(
        default=900.0, gt=0, le=86400, description="longest time for an answer that is not streamed"
    )
    suspect_seconds: float = Field(
        default=2.0,
        ge=0,
        le=300,
        description="how long a worker is avoided after its first ejection (unreachable or failing)",
    )
    first_token_timeout_seconds: float = Field(
        default=900.0,
        gt=0,
        le=86400,
        description="longest time from sending a streamed request to a worker until its first token",
    )
    max_moves: int = Field(
        default=3, ge=0, le=100, description="most moves of one answer to another worker after failures"
    )
    max_body_mib: int = Field(default=32, ge=1, le=1024, description="largest request body, MiB")
    body_timeout_seconds: float = Field(
        default=300.0, gt=0, le=86400, description="longest time for a request body to arrive"
    )
    write_timeout_seconds: float = Field(
        default=120.0,
        gt=0,
        le=86400,
        description="longest time during which a client reads nothing; the request is then cancelled",
    )
    max_header_kib: int = Field(default=64, ge=8, le=1024, description="largest request header, KiB")
    max_answers: int = Field(
        default=1024, ge=1, le=100_000, description="most answers in one request: n times the number of prompts"
    )
    max_in_flight_requests: int = Field(
        default=8192,
        ge=1,
        le=1_000_000,
        description="most requests at a time, queued requests included; more are rejected with 429",
    )
    max_in_flight_mib: int = Field(
        default=256,
        ge=1,
        le=1_048_576,
        description="most memory for request bodies, MiB, with the JSON decoded from them; more are rejected with 429",
    )
    max_images: int = Field(default=IMAGES.max_images, ge=1, le=1024, description="most images in one request")
    max_image_mib: int = Field(
        default=IMAGES.max_image_mib, ge=1, le=1024, description="largest image, MiB as fetched or sent"
    )
    max_image_megapixels: int = Field(
        default=IMAGES.max_image_megapixels, ge=1, le=4096, description="most pixels of an image, millions"
    )
    image_allowed_domains: tuple[str, ...] = Field(
        default=IMAGES.allowed_domains,
        max_length=64,
        description="hosts from which images are fetched, subdomains included, as a JSON list; empty: any host with a "
        "public address",
    )
    image_fetch_timeout_seconds: float = Field(
        default=IMAGES.fetch_timeout_seconds, ge=1, le=300, description="longest time to fetch an image"
    )
    image_max_redirects: int = Field(
        default=IMAGES.max_redirects, ge=0, le=20, description="most redirects that a fetch follows"
    )
    trust_request_mm_kwargs: bool = Field(
        default=False,
        description="whether clients may set mm_processor_kwargs and media_io_kwargs, which change how much memory an "
        "image takes; the engines need --trust-request-mm-kwargs too",
    )
    encode_bypass_below_tokens: int = Field(
        default=IMAGES.bypass_below_tokens,
        ge=0,
        le=1_000_000,
        description=(
            "if the images of a request have at most this many tokens together, the worker that prefills "
            "encodes them; 0: every image goes to an encode worker"
        ),
    )
    encode_cache_mib: int = Field(
        default=IMAGES.cache_mib,
        ge=0,
        le=65_536,
        description=(
            "memory of one encode worker for embeddings, MiB, which the gateway's records of each worker "
            "follow; 0: none"
        ),
    )
    linger_seconds: float = Field(
        default=0.0,
        ge=0,
        le=300,
        description=(
            "time after SIGTERM in which requests are still accepted, because Services still route to the gateway"
        ),
    )
    shutdown_seconds: float = Field(
        default=30.0, ge=0, le=3600, description="time for open streams to end after SIGTERM"
    )
    model_cache: Path | None = Field(
        default=None, description="folder for tokenizer files by content hash; default: a temporary folder"
    )

    @property
    def log_fields(self) -> dict[str, str]:
        """See ProcessSettings."""
        return {"service": f"{self.namespace}/{self.service}"}

    @model_validator(mode="after")
    def _credentials_come_together(self) -> Self:
        if (self.nats_user is None) != (self.nats_password is None):
            raise ValueError("nats_user and nats_password are set together or not at all")
        return self
