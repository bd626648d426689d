"""The arrows of the data flow: frozen structs that cross parts and processes. Torch-free."""

from atom_core.messages.adapters import NamedAdapter
from atom_core.messages.images import Image, PlacedImage, Video, images_within
from atom_core.messages.kv_transfer import KVTransferParams
from atom_core.messages.outputs import (
    STEP_SIZES,
    CompletionLogprobs,
    EngineOutput,
    FinishReason,
    KVTransferStats,
    OffloadStats,
    RequestOutput,
    StepStats,
    TokenLogprobs,
)
from atom_core.messages.requests import (
    EngineRequest,
    Pooling,
    PoolingKind,
    Prompt,
    SamplingParams,
    StructuredOutputParams,
    Submission,
    ThinkingBudget,
)
from atom_core.messages.states import RequestPhase, RequestState
from atom_core.messages.steps import (
    NOT_FINITE,
    ModelOutput,
    NewRequest,
    RequestStepOutput,
    ScheduledRequest,
    SchedulerOutput,
    StateCopy,
)
from atom_core.messages.transfers import (
    BlockCopy,
    BlockTransfers,
    PeerPrompt,
    Transfer,
    TransferKind,
    TransferResult,
)

__all__ = [
    "NOT_FINITE",
    "STEP_SIZES",
    "BlockCopy",
    "BlockTransfers",
    "CompletionLogprobs",
    "EngineOutput",
    "EngineRequest",
    "FinishReason",
    "Image",
    "KVTransferParams",
    "KVTransferStats",
    "ModelOutput",
    "NamedAdapter",
    "NewRequest",
    "OffloadStats",
    "PeerPrompt",
    "PlacedImage",
    "Pooling",
    "PoolingKind",
    "Prompt",
    "RequestOutput",
    "RequestPhase",
    "RequestState",
    "RequestStepOutput",
    "SamplingParams",
    "ScheduledRequest",
    "SchedulerOutput",
    "StateCopy",
    "StepStats",
    "StructuredOutputParams",
    "Submission",
    "ThinkingBudget",
    "TokenLogprobs",
    "Transfer",
    "TransferKind",
    "TransferResult",
    "Video",
    "images_within",
]
