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

# Routes are tried one after the other: those that are asked for most come first.
_MODULES = (
    completions,
    chat_completions,
    responses,
    messages,
    embeddings,
    scores,
    classify,
    tokens,
    health,
    metrics,
    models,
    files,
    batches,
    adapters,
    admin,
    server_info,
)
ROUTERS = tuple(module.router for module in _MODULES)

__all__ = ["ROUTERS"]
