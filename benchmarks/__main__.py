"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import sys

from benchmarks import (
    acceptance,
    adapters,
    all_reduce,
    apart,
    blocks,
    busy,
    chart,
    clients,
    encoders,
    gpu,
    http_overhead,
    images,
    jump_forward,
    kernels,
    masks,
    offline,
    offload,
    overhead,
    pace,
    ranks,
    replicas,
    served,
    speculation,
    vllm_plugin,
    watched,
)

COMMANDS = {
    "offline": offline,
    "overhead": overhead,
    "http": http_overhead,
    "watched": watched,
    "served": served,
    "clients": clients,
    "pace": pace,
    "ranks": ranks,
    "replicas": replicas,
    "adapters": adapters,
    "encoders": encoders,
    "images": images,
    "offload": offload,
    "apart": apart,
    "blocks": blocks,
    "busy": busy,
    "masks": masks,
    "jump": jump_forward,
    "speculation": speculation,
    "acceptance": acceptance,
    "gpu": gpu,
    "kernels": kernels,
    "all-reduce": all_reduce,
    "vllm": vllm_plugin,
    "chart": chart,
}


def main(arguments: list[str] | None = None) -> int:
    """Run one benchmark and return the exit status of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module in COMMANDS.items():
        summary = (module.__doc__ or "").strip()
        command = commands.add_parser(name, help=summary, description=summary)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    options = parser.parse_args(arguments)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
