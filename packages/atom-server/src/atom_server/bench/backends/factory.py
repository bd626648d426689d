"""Which protocol each backend speaks."""

from __future__ import annotations

from atom_server.bench.backends.backend import Backend
from atom_server.bench.backends.deepspeed_mii import DeepSpeedMII
from atom_server.bench.backends.openai import OpenAIChat, OpenAICompletions
from atom_server.bench.backends.tensorrt_llm import TensorRTLLM
from atom_server.bench.backends.tgi import TGI

BACKENDS: dict[str, type[Backend]] = {
    "vllm": OpenAICompletions,
    "openai": OpenAICompletions,
    "openai-chat": OpenAIChat,
    "sglang": OpenAICompletions,
    "lmdeploy": OpenAICompletions,
    "scalellm": OpenAICompletions,
    "tgi": TGI,
    "tensorrt-llm": TensorRTLLM,
    "deepspeed-mii": DeepSpeedMII,
}


def make_backend(name: str) -> Backend:
    """The backend of that name, one of `BACKENDS`."""
    return BACKENDS[name]()
