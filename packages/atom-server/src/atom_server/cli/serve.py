"""`atom serve`: an OpenAI-compatible server."""

from __future__ import annotations

import argparse
import logging
import time

from atom_core import EngineArgs
from atom_core.settings import torchrun
from atom_server.cli.logs import configure_logging
from atom_server.options import ServerOptions

HELP = "serve a model to OpenAI clients"
USAGE = "[--model MODEL] [flags]"
DESCRIPTION = """\
Serve a model over HTTP to curl, the openai package and everything that speaks the OpenAI API.
Without --model this is SmolLM2-135M-Instruct, which is downloaded once."""
SETTINGS = (ServerOptions, EngineArgs)
EXAMPLES = """\
examples:
  atom serve
  atom serve --model ./my-model --served-model-name my-model
  atom serve --model model.gguf --max-model-len 4096 --kv-cache-dtype fp8
  atom serve --host 0.0.0.0 --port 9000 --api-key $KEY

then:
  curl http://127.0.0.1:8000/v1/chat/completions \\
    -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64}'
"""

_logger = logging.getLogger(__name__)
# Fields of the engine whose flags are the server's here.
_SERVERS_OWN = ("port",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The server's flags, then the engine's."""
    ServerOptions.add_cli_args(parser)
    EngineArgs.add_cli_args(parser, leave_out=_SERVERS_OWN)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes or the engine dies; torchrun's processes after the first run ranks of its engine."""
    started = time.time()
    options = ServerOptions.from_cli_args(args)
    # Clients of one server must not be able to choose whose cached blocks they hit: hashes are keyed here.
    args.prefix_hash = args.prefix_hash or "sha256"
    engine_args = EngineArgs.from_cli_args(args, leave_out=_SERVERS_OWN)

    configure_logging(options.log_level)
    if (process := torchrun()) is not None and process.rank > 0:
        from atom_core.executor.launchers.torchrun import run_torchrun_rank

        return run_torchrun_rank(process, engine_args)
    if args.port not in (None, options.port):
        _logger.info("port: %d, of --server-port; --port %d is left aside", options.port, args.port)

    from atom_server.connections.listen import listening
    from atom_server.lifecycle import serve
    from atom_server.startup import check_options

    check_options(options)
    with listening(options) as listener:
        serve(engine_args, options, listener, started=started)
    return 0
