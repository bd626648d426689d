"""What the prefix cache stores and forgets, told to routers in vLLM's words. Torch-free."""

from atom_core.kv_events.config import KVEventsConfig
from atom_core.kv_events.publisher import KVEventPublisher
from atom_core.kv_events.recorder import KVEventRecorder

__all__ = ["KVEventPublisher", "KVEventRecorder", "KVEventsConfig"]
