"""`atom route`: one address over servers that compute prompts and servers that go on from them."""

from __future__ import annotations

import argparse

from atom_server.apart.options import RouteOptions
from atom_server.cli.logs import configure_logging
from atom_server.options import ServerOptions

HELP = "one address for servers that compute prompts and servers that go on from them"
USAGE = "--prefill URL[,URL...] --decode URL[,URL...] [flags]"
DESCRIPTION = """\
Send each prompt to a server that computes it, and its decode to another one, which fetches the prompt's KV cache there.
Where that does not work, the decode server computes the prompt itself."""
EXAMPLES = """\
examples:
  atom serve --port 8001 --kv-transfer-config '{"kv_connector": "TcpConnector", "kv_role": "kv_producer"}'
  atom serve --port 8002 --kv-transfer-config '{"kv_connector": "TcpConnector", "kv_role": "kv_consumer"}'
  atom route --prefill http://127.0.0.1:8001 --decode http://127.0.0.1:8002
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The servers, and the address of this one."""
    RouteOptions.add_cli_args(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    options = RouteOptions.from_cli_args(args)
    configure_logging(options.log_level)

    from atom_server.apart.routing import route
    from atom_server.connections.listen import listening

    own = ServerOptions(host=options.host, port=options.port, max_body_mb=options.max_body_mb)
    with listening(own) as listener:
        route(options, own, listener)
    return 0
