"""The HTTP routes, one file for each concern."""

from atom_server.routes import chat_completions, completions, health, models, profile, tokens, version

ROUTERS = tuple(module.router for module in (chat_completions, completions, models, tokens, health, version, profile))

__all__ = ["ROUTERS"]
