"""The HTTP routes, one file for each concern; `ROUTERS` are those that every server has."""

from atom_server.routes import (
    adapters,
    admin,
    batches,
    chat_completions,
    classify,
    completions,
    embeddings,
    files,
    health,
    messages,
    metrics,
    models,
    responses,
    scores,
    server_info,
    tokens,
)

_MODULES = (
    adapters,
    admin,
    batches,
    chat_completions,
    classify,
    completions,
    embeddings,
    files,
    health,
    messages,
    metrics,
    models,
    responses,
    scores,
    server_info,
    tokens,
)
ROUTERS = tuple(module.router for module in _MODULES)

__all__ = ["ROUTERS"]
