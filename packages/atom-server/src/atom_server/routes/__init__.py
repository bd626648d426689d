"""The HTTP routes, one file for each concern."""

from atom_server.routes import (
    chat_completions,
    completions,
    embeddings,
    health,
    messages,
    models,
    profile,
    responses,
    scores,
    server_info,
    tokens,
    version,
)

ROUTERS = tuple(
    module.router
    for module in (
        chat_completions,
        completions,
        embeddings,
        health,
        messages,
        models,
        profile,
        responses,
        scores,
        server_info,
        tokens,
        version,
    )
)

__all__ = ["ROUTERS"]
