"""`atom bench accuracy`: what quantization costs a model on a text, against the model without it."""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from atom_core.config import CACHE_DTYPES
from atom_server.bench.client import BenchError
from atom_server.bench.origin import origin
from atom_server.cli.columns import columns

if TYPE_CHECKING:
    from atom_core.models import Accuracy, LoadedModel, ReferenceModel

USAGE = "accuracy --model MODEL --text FILE [--quantization FORMAT ...] [flags]"
DESCRIPTION = """\
Let a model read a text, once as it is and once in each number format that is named, and print the perplexity of each,
its divergence from the model as it is (KL, in nats a token), and how often both expect the same token most. The text is
read in windows that begin anew. A checkpoint that is quantized already is compared with a plain one by --against."""
EXAMPLES = """\
examples:
  atom bench accuracy --text book.txt --quantization fp8 int8 int4 mxfp4
  atom bench accuracy --model ./my-model --text book.txt --kv-cache-dtype fp8
  atom bench accuracy --model ./my-model-fp8 --against ./my-model --text book.txt --json accuracy.json
"""

# Weights as the engine holds them without a flag.
_STORED = "stored"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the text, and what to compare."""
    parser.add_argument("--model", default="smollm2", help="folder, .gguf file or name (default: %(default)s)")
    parser.add_argument("--against", metavar="MODEL", help="compare with this model (default: the same, unquantized)")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="what to read, in UTF-8")
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


def run(args: argparse.Namespace) -> int:
    """Measure, print, save."""
    if args.quantization is None and args.kv_cache_dtype == "auto" and args.against is None:
        raise BenchError("there is nothing to compare: name --quantization, --kv-cache-dtype fp8 or --against MODEL")
    if args.json is not None and not args.json.parent.is_dir():
        raise BenchError(f"--json {args.json}: there is no folder {args.json.parent}")
    text = _read(args.text)
    plain, rows = _measure(args, text)
    about = {
        "text": args.text.name,
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "window": args.window,
        "dtype": plain.context.dtype_name,
        "machine": {"name": plain.context.platform.name} | origin(args.commit),
    }
    print(f"{args.text}: {len(text)} characters in windows of {args.window} tokens, in {plain.context.dtype_name}\n")
    print("\n".join(columns([_TITLES, *(row.cells() for row in rows)])))
    if args.json is not None:
        args.json.write_text(json.dumps(about | {"results": [asdict(row) for row in rows]}, indent=2) + "\n")
        print(f"\nwritten: {args.json}")
    return 0


_TITLES = ("model", "weights", "KV cache", "tokens", "perplexity", "change", "KL", "top-1")


@dataclass(frozen=True)
class _Row:
    """One line of the table; the baseline's comes first, and has nothing to be compared with."""

    model: str
    quantization: str
    kv_cache_dtype: str
    num_tokens: int
    perplexity: float
    perplexity_change: float | None = None
    kl_divergence: float | None = None
    top1_agreement: float | None = None

    def cells(self) -> tuple[str, ...]:
        return (
            *(self.model, self.quantization, self.kv_cache_dtype, str(self.num_tokens), f"{self.perplexity:.3f}"),
            "" if self.perplexity_change is None else f"{self.perplexity_change:+.2%}",
            "" if self.kl_divergence is None else f"{self.kl_divergence:.4f}",
            "" if self.top1_agreement is None else f"{self.top1_agreement:.1%}",
        )


def _measure(args: argparse.Namespace, text: str) -> tuple[LoadedModel, list[_Row]]:
    """The baseline's model, and a line for it and for each format."""
    # Imported here: other commands go without torch.
    from atom_core.models import ReferenceModel, load_model, open_checkpoint, resolve_model, stored_quantization

    path, plain_path = resolve_model(args.model), resolve_model(args.against or args.model)
    formats = {name: None if name == _STORED else name for name in args.quantization or [_STORED]}
    for requested in formats.values():
        stored_quantization(open_checkpoint(path), requested)  # refuses an unknown one before anything is loaded
    windows = _windows(text, path, plain_path, args.window)
    plain = load_model(plain_path, args.dtype, quantization="none", max_model_len=args.window)
    baseline = ReferenceModel(plain, windows)
    weights = plain.context.quantization.name
    rows = [_Row(args.against or args.model, weights, "auto", baseline.num_tokens, baseline.perplexity)]
    load = partial(load_model, path, plain.context.dtype, max_model_len=args.window)
    for name, requested in formats.items():
        # No name for the model: it goes before the next one is loaded.
        found = baseline.measure(load(quantization=requested, kv_cache_dtype=args.kv_cache_dtype), name)
        rows.append(_row((args.model, name, args.kv_cache_dtype), baseline, found))
    return plain, rows


def _row(names: tuple[str, str, str], baseline: ReferenceModel, found: Accuracy) -> _Row:
    change = found.perplexity / baseline.perplexity - 1
    return _Row(*names, baseline.num_tokens, found.perplexity, change, found.kl_divergence, found.top1_agreement)


def _windows(text: str, path: Path, plain_path: Path, size: int) -> list[list[int]]:
    """The text's tokens, which both models must agree on."""
    from atom_core.models import AccuracyError, open_checkpoint, windows_of
    from atom_core.tokenization import Tokenizer

    checkpoints = [open_checkpoint(each) for each in dict.fromkeys((path, plain_path))]
    for checkpoint in checkpoints:
        if size > checkpoint.max_model_len:
            raise BenchError(
                f"--window {size} is longer than {checkpoint.path} reads: {checkpoint.max_model_len} tokens"
            )
    tokenizers = [Tokenizer.from_checkpoint(checkpoint) for checkpoint in checkpoints]
    token_ids, *others = [tokenizer.encode(text, add_special_tokens=False) for tokenizer in tokenizers]
    if any(other != token_ids for other in others):
        raise BenchError(f"{path} and {plain_path} have tokenizers that differ, so that no token can be compared")
    try:
        return windows_of(token_ids, size, tokenizers[0].encode(""))
    except AccuracyError as error:
        raise BenchError(str(error)) from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BenchError(f"{path} is not text in UTF-8") from None
