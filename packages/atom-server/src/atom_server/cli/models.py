"""`atom models`: which models are known, which are here, and where."""

from __future__ import annotations

import argparse

from atom_server.cli.columns import columns

HELP = "list, download and find models"
USAGE = "list | pull NAME | path NAME"
DESCRIPTION = """\
Models that ATOM knows by name, models that are already on this machine, and the architectures that it runs: any
checkpoint of these in float32, bfloat16 or float16, whoever published it, and quantized ones in the formats that
docs/models.md lists."""
EXAMPLES = """\
examples:
  atom models list
  atom models pull smollm2
  atom models pull HuggingFaceTB/SmolLM2-135M-Instruct
  atom models path smollm2
"""
_ACTIONS = {
    "list": "models known by name, and models downloaded",
    "pull": "download a model, unless it is here already",
    "path": "print where a downloaded model lies",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One action, and a name for two of them."""
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True, prog="atom models")
    _, pull, path = (actions.add_parser(name, help=does, description=does) for name, does in _ACTIONS.items())
    for action in (pull, path):
        action.add_argument("name", help="a name that `atom models list` shows, or a Hugging Face id")
    pull.add_argument("--revision", help="branch, tag or commit of a Hugging Face id")


def run(args: argparse.Namespace) -> int:
    """Do the one action."""
    match args.action:
        case "list":
            _list()
        case "pull":
            from atom_core.models import resolve_model

            print(resolve_model(args.name, revision=args.revision))
        case "path":
            print(_path(args.name))
    return 0


def _path(name: str) -> str:
    from atom_core.models import find_cached

    found = find_cached(name)
    if found is None:
        raise FileNotFoundError(2, f"not on this machine; `atom models pull {name}` downloads it", name)
    return str(found)


def _list() -> None:
    from atom_core.models import cached_models, known_models, models_cache_dir

    cached = {model.name: model for model in cached_models()}
    rows = []
    for model in known_models():
        here = cached.pop(model.name, None)
        size, where = (_size(here.size), str(here.path)) if here else ("", "not downloaded")
        rows.append((model.name, size, f"{model.description} ({model.license})", where))
    rows += [(model.name, _size(model.size), "", str(model.path)) for model in cached.values()]
    print("\n".join(columns(rows)))
    print(f"\ndownloads are kept in {models_cache_dir()}\n")
    print("\n".join(_architecture_lines()))


def _architecture_lines() -> list[str]:
    from atom_core.models import describe_architecture, supported_architectures

    described = {name: describe_architecture(name) for name in supported_architectures()}
    rows = [("architecture", "models", "published as", "features")]
    rows += [(name, found.models, found.published_as, ", ".join(found.features)) for name, found in described.items()]
    return columns(rows)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.0f} MiB" if num_bytes < 2**30 else f"{num_bytes / 2**30:.1f} GiB"
