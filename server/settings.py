"""Every setting of the HTTP side, as plain data. Built by the command line, read everywhere."""

from dataclasses import dataclass, field
from pathlib import Path

from engine.logs import FORMATS
from scheduler.sampling_params import MAX_LOGPROBS, MAX_STOP_STRINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """`served_model_names`: the first is what replies and /v1/models say, all are accepted in
    requests; empty means the engine's own name for its model. The `max_*` limits bound what one
    call may ask for and what may wait, so that no caller can exhaust the memory; times are seconds.
    Without any API key the server is open to all; with several, each has a prefix cache of its own.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_names: tuple[str, ...] = ()
    max_connections: int = 4096  # at once, idle ones too
    max_body_bytes: int = 16 * 2**20
    max_prompts: int = 1024
    max_n: int = 128
    max_choices: int = 2048  # prompts times n of one call
    max_messages: int = 4096
    max_stop_strings: int = MAX_STOP_STRINGS
    max_logprobs: int = MAX_LOGPROBS  # alternatives to one token
    max_listed_token_ids: int = 16_384  # in stop_token_ids, allowed_token_ids and logit_bias each
    max_num_queued_reqs: int = 2048  # choices that may wait for a seat, of all calls
    max_num_queued_tokens: int = 2**20  # prompt tokens of those that wait
    max_queue_seconds: float = 600.0  # how long a call may wait to be begun; 0: no limit
    default_timeout: float = 0.0  # the time of a request that says nothing of it; 0: no limit
    max_timeout: float = 86_400.0  # the longest that a request may ask for
    scheduling_policy: str = "priority"  # fcfs: requests may not ask for a priority
    fair_sharing: str = "auto"  # off, keys, users; auto: users where there are several keys
    generation_config: str = "auto"  # auto: sampling defaults from the model's file; none: ours
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    api_keys_in_file: tuple[str, ...] = field(default=(), repr=False)
    metrics_access: str = "keyed"  # /metrics wants an API key where there are any; or open, or off
    ui: bool = True  # the page map and the playground at /ui
    ui_show_text: bool = False  # the page map shows what the tokens of a page say
    # These keys, and no others, may see the page map; they are API keys as well.
    ui_api_keys: tuple[str, ...] = field(default=(), repr=False)
    otlp_traces_endpoint: str = ""  # a span per generating call goes there; empty: no traces
    allowed_origins: tuple[str, ...] = ()  # web pages from there may call us; "*": from anywhere
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    keepalive_interval: float = 15.0  # a silent stream sends a comment line this often; 0: never
    shutdown_timeout: float = 30.0  # how long open requests may go on after a stop signal
    max_restarts: int = 3  # of the engine, within the window; 0: its death ends the server
    restart_window: float = 600.0
    step_timeout: float = 300.0  # an engine silent for so long hangs; 0: no limit
    stall_steps: int = 500  # steps without any progress after which an engine is stuck
    stall_action: str = "restart"  # or report: in the log and by readiness only
    log_level: str = "info"
    log_format: str = "text"
    log_prompts: bool = False
    log_stats_interval: float = 10.0  # while there is work, a line of figures; 0: never

    @property
    def has_api_keys(self) -> bool:
        return bool(self.api_keys or self.api_keys_in_file)

    @property
    def shared_by(self) -> str:
        """Among whom the server is shared by what they were served: off, keys or users."""
        if self.fair_sharing != "auto":
            return self.fair_sharing
        return "users" if len({*self.api_keys, *self.api_keys_in_file}) > 1 else "off"

    def __post_init__(self) -> None:
        for name in (
            "max_connections",
            "max_body_bytes",
            "max_prompts",
            "max_n",
            "max_choices",
            "max_messages",
            "max_stop_strings",
            "max_listed_token_ids",
            "stall_steps",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_stop_strings > MAX_STOP_STRINGS:
            raise ValueError(
                f"max_stop_strings must be at most {MAX_STOP_STRINGS}, got {self.max_stop_strings}"
            )
        if not 0 <= self.max_logprobs <= MAX_LOGPROBS:
            raise ValueError(
                f"max_logprobs must be between 0 and {MAX_LOGPROBS}, got {self.max_logprobs}"
            )
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be between 0 and 65535, got {self.port}")
        if self.generation_config not in ("auto", "none"):
            raise ValueError(
                f"generation_config must be auto or none, got {self.generation_config!r}"
            )
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ValueError("ssl_keyfile needs ssl_certfile")
        if self.scheduling_policy not in ("priority", "fcfs"):
            raise ValueError(
                f"scheduling_policy must be priority or fcfs, got {self.scheduling_policy!r}"
            )
        if self.fair_sharing not in ("auto", "off", "keys", "users"):
            raise ValueError(
                f"fair_sharing must be auto, off, keys or users, got {self.fair_sharing!r}"
            )
        if self.stall_action not in ("restart", "report"):
            raise ValueError(f"stall_action must be restart or report, got {self.stall_action!r}")
        if self.metrics_access not in ("keyed", "open", "off"):
            raise ValueError(
                f"metrics_access must be keyed, open or off, got {self.metrics_access!r}"
            )
        if self.log_format not in FORMATS:
            raise ValueError(f"log_format must be text or json, got {self.log_format!r}")
        for name in (
            "keepalive_interval",
            "shutdown_timeout",
            "max_restarts",
            "restart_window",
            "step_timeout",
            "log_stats_interval",
            "max_num_queued_reqs",
            "max_num_queued_tokens",
            "max_queue_seconds",
            "default_timeout",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.max_timeout <= 0:
            raise ValueError(f"max_timeout must be above 0, got {self.max_timeout}")
        if self.default_timeout > self.max_timeout:
            raise ValueError(
                f"default_timeout must be at most max_timeout, {self.max_timeout:g}, got "
                f"{self.default_timeout:g}"
            )
