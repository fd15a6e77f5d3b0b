"""The flags of `octavo serve` as data: one row per field of the two settings dataclasses.

Names are vLLM's where it has one, ours beside them. Stdlib only: the engine's process, which is
spawned, imports the command line again.
"""

from pathlib import Path

from server.flag_reading import Flag
from server.flag_values import (
    api_key,
    at_least,
    existing_file,
    fraction,
    http_url,
    key_file,
    non_empty,
    one_of,
    port,
    seconds,
    size,
)

MODEL_FLAGS = (
    Flag("model", ("--model",), non_empty, "built-in name, folder, GGUF file or hub id"),
    Flag("cache_dir", ("--cache-dir",), Path, "where fetched models are kept", "FOLDER"),
    Flag("offline", ("--offline",), None, "never touch the network"),
    Flag(
        "trust_remote_code",
        ("--trust-remote-code",),
        None,
        "run the code that comes with a model: only for a model whose code you have read",
    ),
)

ENGINE_FLAGS = (
    *MODEL_FLAGS,
    Flag("dtype", ("--dtype",), one_of("auto", "float32", "bfloat16", "float16"), "of the weights"),
    Flag(
        "quantization",
        ("--quantization", "-q"),
        one_of("int8"),
        "of the linear layers' weights; needs the native CPU kernels",
        "KIND",
    ),
    Flag("device", ("--device",), one_of("auto", "cpu", "cuda"), "where the model runs"),
    Flag(
        "max_model_len", ("--max-model-len",), at_least(1), "context: prompt and answer, in tokens"
    ),
    Flag("page_size", ("--block-size", "--page-size"), at_least(1), "tokens in one cache page"),
    Flag(
        "num_pages", ("--num-gpu-blocks-override", "--num-pages"), at_least(1), "pages in the cache"
    ),
    Flag(
        "kv_cache_dtype",
        ("--kv-cache-dtype",),
        one_of("auto", "float32", "bfloat16", "int8"),
        "of cached keys and values; auto: the model's",
        "DTYPE",
    ),
    Flag(
        "kv_cache_memory_bytes",
        ("--kv-cache-memory-bytes",),
        size,
        "memory of the cache, such as 4G",
        "SIZE",
    ),
    Flag(
        "gpu_memory_utilization",
        ("--gpu-memory-utilization",),
        fraction,
        "part of the GPU's memory that may be used",
        "FRACTION",
    ),
    Flag("max_num_seqs", ("--max-num-seqs",), at_least(1), "sequences that may run at once"),
    Flag(
        "max_num_batched_tokens", ("--max-num-batched-tokens",), at_least(1), "tokens of one step"
    ),
    Flag(
        "enable_prefix_caching",
        ("--enable-prefix-caching",),
        None,
        "share the cache of equal prefixes",
    ),
    Flag(
        "max_passes",
        ("--max-passes",),
        at_least(0),
        "how often a small request may pass a blocked large one",
    ),
    Flag(
        "priority_ageing",
        ("--priority-ageing",),
        seconds,
        "how much waiting a level of priority is worth",
        "SECONDS",
    ),
    Flag("threads", ("--threads",), at_least(1), "CPU threads; default: what the container allows"),
    Flag(
        "layers",
        ("--layers",),
        one_of("auto", "native", "transformers"),
        "who computes them; auto: the native block where it fits the model",
    ),
    Flag("attention", ("--attention",), non_empty, "attention kernel; auto takes the fastest"),
    Flag(
        "enforce_eager",
        ("--enforce-eager",),
        None,
        "on a GPU, start every kernel of a decode step anew (no CUDA graphs)",
    ),
    Flag("torch_compile", ("--torch-compile",), None, "compile the model with torch.compile"),
    Flag(
        "deterministic",
        ("--deterministic",),
        None,
        "the same tokens whatever else is served; slower on a GPU, float32 on a CPU",
    ),
    Flag("self_check", ("--self-check",), None, "compare with a cold forward at start"),
    Flag("step_log", ("--step-log",), Path, "file for a line of JSON per step", "FILE"),
)

SERVER_FLAGS = (
    Flag("host", ("--host",), non_empty, "address to listen on"),
    Flag("port", ("--port",), port, "0 takes a free one"),
    Flag(
        "served_model_names",
        ("--served-model-name",),
        non_empty,
        "name in the API, then its aliases; default: the model's",
        "NAME",
        many=True,
    ),
    Flag(
        "max_connections",
        ("--max-connections",),
        at_least(1),
        "limit of connections at once; beyond: 503",
    ),
    Flag("max_body_bytes", ("--max-body-bytes",), size, "limit of one request's body", "SIZE"),
    Flag("max_prompts", ("--max-prompts",), at_least(1), "limit of prompts in one call"),
    Flag("max_n", ("--max-n",), at_least(1), "limit of n"),
    Flag("max_choices", ("--max-choices",), at_least(1), "limit of prompts times n in one call"),
    Flag("max_messages", ("--max-messages",), at_least(1), "limit of messages in one call"),
    Flag(
        "max_stop_strings",
        ("--max-stop-strings",),
        at_least(1),
        "limit of stop strings in one call",
    ),
    Flag("max_logprobs", ("--max-logprobs",), at_least(0), "limit of alternatives to one token"),
    Flag(
        "max_listed_token_ids",
        ("--max-listed-token-ids",),
        at_least(1),
        "limit of each list of token ids but the prompt",
    ),
    Flag(
        "max_num_queued_reqs",
        ("--max-num-queued-reqs",),
        at_least(0),
        "requests that may wait for a seat, n of them for a request with n choices; beyond: 429",
    ),
    Flag(
        "max_num_queued_tokens",
        ("--max-num-queued-tokens",),
        at_least(0),
        "prompt tokens of the requests that may wait, n times for n choices; beyond: 429",
    ),
    Flag(
        "max_queue_seconds",
        ("--max-queue-seconds",),
        seconds,
        "how long a call may wait to be begun, then it is a 503; 0: no limit",
        "SECONDS",
    ),
    Flag(
        "default_timeout",
        ("--default-timeout",),
        seconds,
        "the `timeout` of requests that name none; 0: no limit",
        "SECONDS",
    ),
    Flag("max_timeout", ("--max-timeout",), seconds, "longest `timeout` of a request", "SECONDS"),
    Flag(
        "scheduling_policy",
        ("--scheduling-policy",),
        one_of("priority", "fcfs"),
        "fcfs refuses requests with a priority other than 0",
    ),
    Flag(
        "fair_sharing",
        ("--fair-sharing",),
        one_of("auto", "off", "keys", "users"),
        "share by served tokens among API keys, or also among the users of each; auto: users "
        "where there are several keys, else off",
    ),
    Flag(
        "generation_config",
        ("--generation-config",),
        one_of("auto", "none"),
        "auto takes sampling defaults from the model's generation_config.json",
    ),
    Flag(
        "api_keys",
        ("--api-key",),
        api_key,
        "key that callers must send; may be given again for more keys",
        "KEY",
        repeated=True,
        source="api_key",
    ),
    Flag(
        "api_keys_in_file",
        ("--api-key-file",),
        key_file,
        "file with one such key a line",
        "FILE",
        source="api_key_file",
    ),
    Flag("ui", ("--ui",), None, "the page map and the playground at /ui"),
    Flag("ui_show_text", ("--ui-show-text",), None, "let the page map show the text of pages"),
    Flag(
        "ui_api_keys",
        ("--ui-api-key",),
        api_key,
        "key that may see the page map, of all tenants; others may not then; may be given again",
        "KEY",
        repeated=True,
        source="ui_api_key",
    ),
    Flag(
        "allowed_origins",
        ("--allowed-origins",),
        non_empty,
        "origins whose web pages may call the server (CORS); * for any",
        "ORIGIN",
        many=True,
    ),
    Flag("ssl_certfile", ("--ssl-certfile",), existing_file, "certificate, to serve HTTPS", "FILE"),
    Flag("ssl_keyfile", ("--ssl-keyfile",), existing_file, "the certificate's private key", "FILE"),
    Flag(
        "keepalive_interval",
        ("--keepalive-interval",),
        seconds,
        "a silent stream sends a comment this often; 0: never",
        "SECONDS",
    ),
    Flag(
        "shutdown_timeout",
        ("--shutdown-timeout",),
        seconds,
        "how long open requests may go on after a stop signal",
        "SECONDS",
    ),
    Flag(
        "max_restarts",
        ("--max-restarts",),
        at_least(0),
        "how often a dead engine is restarted within the window; 0 ends the server",
    ),
    Flag(
        "restart_window",
        ("--restart-window",),
        seconds,
        "the time within which restarts are counted",
        "SECONDS",
    ),
    Flag(
        "step_timeout",
        ("--step-timeout",),
        seconds,
        "an engine that tells of no step for so long hangs and is killed; 0: never",
        "SECONDS",
    ),
    Flag(
        "stall_steps",
        ("--stall-steps",),
        at_least(1),
        "steps without any progress after which the engine is stuck",
    ),
    Flag(
        "stall_action",
        ("--stall-action",),
        one_of("restart", "report"),
        "what to do with an engine that hangs or is stuck",
    ),
    Flag(
        "log_level", ("--log-level",), one_of("debug", "info", "warning", "error"), "what is logged"
    ),
    Flag(
        "metrics_access",
        ("--metrics-access",),
        one_of("keyed", "open", "off"),
        "who may read /metrics: who has an API key, where there are any; everyone; nobody",
    ),
    Flag(
        "otlp_traces_endpoint",
        ("--otlp-traces-endpoint",),
        http_url,
        "collector that gets a trace of each generating call, by OTLP over HTTP "
        "(http://HOST:4318/v1/traces); needs the extra otel",
        "URL",
        standard="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    ),
    Flag("log_format", ("--log-format",), one_of("text", "json"), "how a log line looks"),
    Flag("log_prompts", ("--log-prompts",), None, "put the text of prompts into the log"),
    Flag(
        "log_stats_interval",
        ("--log-stats-interval",),
        seconds,
        "a line of figures this often while there is work; 0: never",
        "SECONDS",
    ),
)
