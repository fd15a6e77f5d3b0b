"""An engine's start on a CUDA device: what `engine.platform.Platform` asks for."""

import logging
from collections.abc import Mapping

import torch

from engine.attention import Attention, Kernel, select_kernel
from engine.config import EngineConfig, EngineError
from engine.cuda.candidates import TRITON, cuda_attention, page_copier
from engine.cuda.decode_graphs import CudaRecorder, DecodeGraphs
from engine.cuda.memory import CudaMeter, largest_step_bytes
from engine.cuda.runner import Recording, StepLimits, cuda_runner
from engine.layers import Layers
from engine.loading import Progress, Reporter
from engine.loading.load import LoadedModel
from engine.model_runner import ModelRunner
from engine.platform import MemoryBudget
from kv_cache.storage import PageCopier, PageStorage
from scheduler import SchedulerConfig

logger = logging.getLogger(__name__)


class CudaPlatform:
    """Made once, for one model on one device."""

    def __init__(self, config: EngineConfig, loaded: LoadedModel) -> None:
        self._config = config
        self._spec = loaded.spec
        self._dtype: torch.dtype = getattr(torch, loaded.dtype)
        self.device = torch.device(loaded.device, torch.cuda.current_device())
        self._candidates = cuda_attention(self.device, deterministic=config.deterministic)
        self._graphs: DecodeGraphs | None = None
        if config.deterministic:
            from engine.cuda.batch_invariant import make_batch_invariant

            make_batch_invariant()

    @property
    def padding_pages(self) -> int:
        """Recorded steps need one for their padding."""
        return 0 if self._config.enforce_eager else 1

    def attention_candidates(self) -> Mapping[str, Kernel | Attention]:
        return self._candidates

    def memory(self, layers: Layers, attention: Attention, kv_dtype: torch.dtype) -> MemoryBudget:
        """What `--gpu-memory-utilization` leaves beside weights and the largest step."""
        step_bytes = largest_step_bytes(
            layers,
            self._spec,
            attention,
            page_size=self._config.page_size,
            limits=self._limits(self._config.max_model_len or self._spec.max_model_len),
            kv_dtype=kv_dtype,
            device=self.device,
            meter=CudaMeter(self.device),
        )
        free, total = torch.cuda.mem_get_info(self.device)
        spared = int((1 - self._config.gpu_memory_utilization) * total)
        logger.info("the largest step takes %.2f GiB beside the weights", step_bytes / 2**30)
        return MemoryBudget(max(0, free - step_bytes), max(0, free - step_bytes - spared))

    def page_copier(self, kv_dtype: torch.dtype) -> PageCopier:
        return page_copier(self.device, kv_dtype)

    def runner(
        self, layers: Layers, storage: PageStorage, attention: Attention, max_model_len: int
    ) -> ModelRunner:
        recorded = self._recordable(attention, storage.dtype)
        self._candidates = {}  # one that was not chosen may hold memory
        recording = None
        if recorded is not None:
            padding_page = storage.data.shape[2] - 1
            recording = Recording(
                recorder=CudaRecorder(), attention=recorded, padding_page=padding_page
            )
        runner, self._graphs = cuda_runner(
            layers,
            storage,
            attention,
            page_size=self._config.page_size,
            limits=self._limits(max_model_len),
            recording=recording,
        )
        return runner

    def warm_up(self, report: Reporter) -> tuple[str, ...]:
        if self._graphs is None:
            return ("decode steps are started kernel by kernel",)
        try:
            self._graphs.record_all(
                lambda done, total: report(Progress("recording decode steps", done, total))
            )
        except torch.OutOfMemoryError as error:
            raise EngineError(
                "there is no memory left to record decode steps: lower --gpu-memory-utilization "
                f"({self._config.gpu_memory_utilization}) or --max-num-seqs "
                f"({self._config.max_num_seqs}), or use --enforce-eager"
            ) from error
        except RuntimeError as error:  # a model that waits for the device, for one
            logger.warning("decode steps are not recorded: %s", error)
            self._graphs.give_up()
            return ("decode steps are started kernel by kernel: recording them failed",)
        return (f"decode steps are recorded for {len(self._graphs.sizes)} batch sizes",)

    def _recordable(self, attention: Attention, kv_dtype: torch.dtype) -> Attention | None:
        """What recorded steps attend with: our Triton kernels, the only candidate that takes the
        whole geometry from the device. None where they were not wanted, or do not work."""
        if self._config.enforce_eager or TRITON not in self._candidates:
            return None
        if attention is self._candidates[TRITON]:
            return attention
        if self._config.attention != "auto":
            return None
        try:
            _, triton = select_kernel(
                TRITON,
                spec=self._spec,
                dtype=self._dtype,
                kv_dtype=kv_dtype,
                device=self.device,
                page_size=self._config.page_size,
                kernels=self._candidates,
            )
        except EngineError:
            return None
        return triton

    def _limits(self, max_model_len: int) -> StepLimits:
        config = self._config
        max_scored = SchedulerConfig().max_scored_tokens
        return StepLimits(
            max_tokens=config.max_num_batched_tokens,
            max_sequences=config.max_num_seqs,
            max_logit_rows=config.max_num_seqs + max_scored,
            max_pages=-(-max_model_len // config.page_size),
        )
