"""The HTTP routes, one file for each concern."""

from atom_server.routes import (
    chat_completions,
    completions,
    health,
    messages,
    models,
    profile,
    server_info,
    tokens,
    version,
)

ROUTERS = tuple(
    module.router
    for module in (chat_completions, completions, messages, models, tokens, health, server_info, version, profile)
)

__all__ = ["ROUTERS"]
