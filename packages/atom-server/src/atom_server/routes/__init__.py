"""The HTTP routes, one file for each concern."""

from atom_server.routes import chat_completions, completions, embeddings, messages, responses, scores, server, tokens

_MODULES = (chat_completions, completions, embeddings, messages, responses, scores, server, tokens)
ROUTERS = tuple(module.router for module in _MODULES)

__all__ = ["ROUTERS"]
