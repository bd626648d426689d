"""`atom bench accuracy`: what quantization costs a model on a text, or how it answers the questions of lm-eval."""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from atom_core.config import CACHE_DTYPES
from atom_server.bench.accuracy import STORED, Comparison, Reading, compare
from atom_server.bench.origin import origin
from atom_server.bench.outcome import BenchError
from atom_server.cli.bench.tasks import add_task_flags, run_tasks
from atom_server.cli.columns import columns

USAGE = "accuracy --model MODEL (--text FILE | --tasks TASK ...) [--quantization FORMAT ...] [flags]"
DESCRIPTION = """\
Let a model read a text, once as it is and once in each number format that is named, and print the perplexity of each,
its divergence from the model as it is (KL, in nats a token), and how often both expect the same token most. The text is
read in windows that begin anew. A checkpoint that is quantized already is compared with a plain one by --against.

Or let lm-eval (pip install 'lm-eval[api]') ask the questions of its tasks to a running server, or to one that is
started for the model and ends with the measurement."""
EXAMPLES = """\
examples:
  atom bench accuracy --text book.txt --quantization fp8 int8 int4 mxfp4
  atom bench accuracy --model ./my-model --text book.txt --kv-cache-dtype fp8
  atom bench accuracy --model ./my-model-fp8 --against ./my-model --text book.txt --json accuracy.json
  atom bench accuracy --model ./my-model --tasks gsm8k --num-fewshot 5 --json gsm8k.json
  atom bench accuracy --base-url http://127.0.0.1:8000 --tasks gsm8k --limit 100
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the text, and what to compare."""
    parser.add_argument("--model", default="smollm2", help="folder, .gguf file or name (default: %(default)s)")
    parser.add_argument("--against", metavar="MODEL", help="compare with this model (default: the same, unquantized)")
    parser.add_argument("--text", type=Path, metavar="FILE", help="what to read, in UTF-8")
    parser.add_argument(
        "--quantization",
        nargs="+",
        metavar="FORMAT",
        help="of weights, one or several, as for `atom serve`; stored takes those of the file (default: stored)",
    )
    parser.add_argument(
        "--kv-cache-dtype",
        "--kv_cache_dtype",
        choices=CACHE_DTYPES,
        default="auto",
        help="of the KV cache of what is compared (default: %(default)s)",
    )
    parser.add_argument("--dtype", help="to compute in, such as bfloat16 (default: what is fast here)")
    parser.add_argument("--window", type=int, default=512, help="tokens read at once (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--commit", help="of this software, for that file, where git is not there to tell")
    add_task_flags(parser.add_argument_group("tasks"))


def run(args: argparse.Namespace) -> int:
    """Measure, print, save."""
    if (args.text is None) == (args.tasks is None):
        raise BenchError("name what to measure by: either a text by --text FILE, or tasks by --tasks TASK ...")
    if args.json is not None and not args.json.parent.is_dir():
        raise BenchError(f"--json {args.json}: there is no folder {args.json.parent}")
    return run_tasks(args) if args.tasks else _run_text(args)


def _run_text(args: argparse.Namespace) -> int:
    if args.quantization is None and args.kv_cache_dtype == "auto" and args.against is None:
        raise BenchError("there is nothing to compare: name --quantization, --kv-cache-dtype fp8 or --against MODEL")
    text = _read(args.text)
    comparison = Comparison(
        model=args.model,
        against=args.against or args.model,
        formats=tuple(dict.fromkeys(args.quantization or [STORED])),
        kv_cache_dtype=args.kv_cache_dtype,
        dtype=args.dtype,
        window=args.window,
    )
    plain, readings = compare(comparison, text)
    about = {
        "text": args.text.name,
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "window": args.window,
        "dtype": plain.context.dtype_name,
        "machine": {"name": plain.context.platform.name} | origin(args.commit),
    }
    print(f"{args.text}: {len(text)} characters in windows of {args.window} tokens, in {plain.context.dtype_name}\n")
    print("\n".join(columns([_TITLES, *map(_cells, readings)])))
    if args.json is not None:
        args.json.write_text(json.dumps(about | {"results": [asdict(each) for each in readings]}, indent=2) + "\n")
        print(f"\nwritten: {args.json}")
    return 0


_TITLES = ("model", "weights", "KV cache", "tokens", "perplexity", "change", "KL", "top-1")


def _cells(reading: Reading) -> tuple[str, ...]:
    change, divergence, agreement = reading.perplexity_change, reading.kl_divergence, reading.top1_agreement
    return (
        *(reading.model, reading.quantization, reading.kv_cache_dtype, str(reading.num_tokens)),
        f"{reading.perplexity:.3f}",
        "" if change is None else f"{change:+.2%}",
        "" if divergence is None else f"{divergence:.4f}",
        "" if agreement is None else f"{agreement:.1%}",
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BenchError(f"{path} is not text in UTF-8") from None
