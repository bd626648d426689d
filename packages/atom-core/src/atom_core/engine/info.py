"""`EngineInfo`: what a started engine tells its front end. Torch-free, crosses processes."""

from __future__ import annotations

import msgspec

from atom_models.checkpoint.text_padding import TextPadding
from atom_models.vision.spec import VisionSpec


class EngineInfo(msgspec.Struct, frozen=True):
    """What was resolved at start.

    Attributes:
        model: as asked for; `model_path` is the folder or file it resolved to.
        architecture: the Hugging Face name of the model's class.
        max_model_len: tokens of prompt and output together, at most.
        vocab_size: token ids are below this.
        dtype, kv_cache_dtype, device: their names, e.g. "bfloat16", "bfloat16", "cpu".
        num_blocks, block_size: blocks of the KV cache, and tokens in each.
        num_groups: groups of layers with blocks of their own: a token takes a place in a block of each.
        eos_token_ids: tokens that end a sequence unless ignored.
        profiler_dir: where traces go; None when profiling is not set up.
        timings: seconds of each phase of the start, by name.
        num_threads: threads of each rank.
        tensor_parallel_size: ranks that share each layer.
        data_parallel_size: engines that share the requests; all numbers here are of one of them.
        pipeline_parallel_size: stages of the layers, each with as many ranks as share a layer.
        decode_context_parallel_size: ranks that share a layer and the tokens in its cache.
        enable_expert_parallel: ranks that share a layer hold whole experts.
        enable_dp_attention: the ranks of all engines do so together.
        num_offload_blocks: blocks that are kept beyond those, in memory of the host or on a disk.
        choices: one line for each value that was chosen for the user.
        is_encoder: the model reads texts in both directions, and writes none.
        text_padding: what its texts are filled up with; None where they are read as they are.
        images: which pictures prompts may have; None where the model reads text alone.
    """

    model: str
    model_path: str
    architecture: str
    max_model_len: int
    vocab_size: int
    dtype: str
    kv_cache_dtype: str
    device: str
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    eos_token_ids: tuple[int, ...]
    num_threads: int
    profiler_dir: str | None = None
    timings: dict[str, float] = {}
    choices: list[str] = []
    num_groups: int = 1
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    enable_expert_parallel: bool = False
    enable_dp_attention: bool = False
    num_offload_blocks: int = 0
    is_encoder: bool = False
    text_padding: TextPadding | None = None
    images: VisionSpec | None = None

    @property
    def max_prompt_len(self) -> int:
        """Tokens of a prompt at most; where text is written, one token has room behind it."""
        return self.max_model_len if self.is_encoder else self.max_model_len - 1

    @property
    def num_cache_tokens(self) -> int:
        """Tokens that the KV cache holds in all layers; more where blocks behind a window are given back."""
        return self.num_blocks * self.block_size // self.num_groups
