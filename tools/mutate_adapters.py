"""Put mistakes into the adapters of AITER, one at a time, and see which the tests find.

``python -m tools.mutate_adapters`` tries all of them; ``--only moe --kind arguments`` some, ``--sample 60`` as many,
spread over files. A mistake lives in the memory of one process: no file is changed. The exit status is 1 if any
mistake passed all tests that is not listed in `HARMLESS`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.adapter_mutations import ADAPTERS, ROOT, SOURCES, Mutation, all_mutations, function_at

TESTS = ROOT / "packages" / "atom-kernels" / "tests" / "aiter_backend"
# An adapter's file, or its folder -> the tests that should find its mistakes, those that find most first.
TESTS_OF: dict[str, tuple[str, ...]] = {
    "moe": ("moe",),
    "attention/cache_write": ("cache_write", "strided", "attention"),
    "attention/head_steps": ("cache_write", "attention"),
    "attention/latent": ("strided", "latent", "attention_graphs"),
    "attention/latent_backend": ("latent",),
    "attention/latent_metadata": ("strided", "latent", "attention_graphs"),
    "attention/latent_prologue": ("strided", "latent"),
    "attention/layouts": ("layouts", "cache_write", "attention"),
    "attention/tables": ("cache_write", "attention", "latent"),
    "attention": ("strided", "attention", "attention_graphs"),
    "batched_gemm": ("latent", "parity"),
    "": ("parity", "graph_safety"),
}
# What changes nothing that anybody could see: (file, or file: function, what was edited, into what) -> why.
HARMLESS: dict[tuple[str, str, str], str] = {
    ("attention/latent_prologue.py", '"k_scale", "q_scale"', '"q_scale", "k_scale"'): "both are one",
    ("attention/head_steps.py", '"input_x", "input_y"', '"input_y", "input_x"'): "queries and keys are turned alike",
    (
        "attention/latent.py",
        "key_HNC.transpose(1, 2).contiguous()",
        "key_HNC.transpose(1, 2)",
    ): "products copy what is not contiguous: it is made so once, for no step to do it",
    ("attention/latent.py", "value_HVC.contiguous()", "value_HVC"): "as with what makes keys",
    (
        "attention/shuffled.py",
        "tokens.q.contiguous()",
        "tokens.q",
    ): "pa_fwd_asm is told one stride; whether its output has it too, AITER does not say, so they are made the same",
    ("rotary.py", '"input_x", "input_y"', '"input_y", "input_x"'): "queries and keys are turned alike, too",
    (
        "attention/layouts.py",
        "packed.permute(0, 3, 1, 2, 4).flatten(3).contiguous()",
        "packed.permute(0, 3, 1, 2, 4).flatten(3)",
    ): "what is flattened across dimensions that lay apart is a copy already",
    (
        "attention/layouts.py",
        "shuffled.permute(0, 2, 4, 1, 3).flatten(1, 2).contiguous()",
        "shuffled.permute(0, 2, 4, 1, 3).flatten(1, 2)",
    ): "a copy already, too",
    ("attention/unified.py", '"k_descale", "v_descale"', '"v_descale", "k_descale"'): "both are one scale of 1",
    ("attention/cache_write.py: _rope_cache", '"k_scale", "v_scale"', '"v_scale", "k_scale"'): "here both are one",
    ("attention/cache_write.py: _reshape_and_cache", '"k_scale", "v_scale"', '"v_scale", "k_scale"'): "one is both",
    ("rotary.py", "False", "True"): "all that is handed over turns: nothing is left at either end",
    ("rotary.py", "rotary_dim", "rotary_dim + 1"): "what lies past the angles is not turned",
    ("norm.py", '"input", "residual_in"', '"residual_in", "input"'): "a sum has no order",
    (
        "moe/experts.py",
        'aiter.enum("ActivationType", "Silu"),\n        quant_type=aiter.enum("QuantType", "No")',
        'aiter.enum("QuantType", "No"),\n        quant_type=aiter.enum("ActivationType", "Silu")',
    ): "both have the value 0, and AITER looks at nothing else",
    (
        "moe/routing.py",
        "group_size > _EXPERTS_OF_A_THREAD",
        "group_size >= _EXPERTS_OF_A_THREAD",
    ): "1, 2, 4 or 8 groups of exactly 32 are a power of two, which never comes here",
}
_SECONDS = 300


def tests_of(path: Path) -> list[str]:
    """The test files for an adapter: of its file, else of its folder, else those of all other adapters."""
    adapter = path.relative_to(ADAPTERS).with_suffix("")
    names = next(TESTS_OF[key] for key in (adapter.as_posix(), adapter.parts[0], "") if key in TESTS_OF)
    return [str(TESTS / f"test_aiter_{name}.py") for name in names]


def is_found(mutation: Mutation) -> bool:
    """Whether a test fails, or none can start, with the mistake; in a forked process."""
    child = os.fork()
    if child == 0:
        os._exit(_run_tests(mutation))
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status != 0
        time.sleep(0.02)
    # Work without an end is a mistake that was found.
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _run_tests(mutation: Mutation) -> int:
    import pytest

    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    sys.meta_path.insert(0, _Mutated(mutation))
    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests_of(mutation.path)]))


class _Mutated(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Loads one module from a changed source."""

    def __init__(self, mutation: Mutation) -> None:
        parts = mutation.path.relative_to(SOURCES).with_suffix("").parts
        super().__init__(".".join(parts), str(mutation.path))
        self._source = mutation.apply()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self.name else None

    def get_data(self, path: str) -> bytes:
        return self._source.encode()

    def path_stats(self, path: str) -> Any:
        raise OSError("so that no compiled file is read or written")


def reason_of(mutation: Mutation) -> str | None:
    """Why a mistake is harmless, None if it is not."""
    file = mutation.path.relative_to(ADAPTERS).as_posix()
    places = (file, f"{file}: {function_at(mutation.path, mutation.line)}")
    keys = [(place, mutation.before, mutation.after) for place in places]
    return next((HARMLESS[key] for key in keys if key in HARMLESS), None)


def spread(mutations: Sequence[Mutation], count: int) -> list[Mutation]:
    """`count` of them, evenly over files and lines, the same ones each time."""
    step = max(1.0, len(mutations) / count)
    return [mutations[int(index * step)] for index in range(min(count, len(mutations)))]


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="files whose path has this in it")
    parser.add_argument("--kind", default=[], nargs="*", help="kinds of mistakes, by the beginning of their names")
    parser.add_argument("--sample", type=int, default=0, help="as many, spread over files")
    parser.add_argument("--list", action="store_true", help="only print them")
    options = parser.parse_args(arguments)
    kinds = tuple(options.kind) or ""
    wanted = [m for m in all_mutations() if m.kind.startswith(kinds) and reason_of(m) is None]
    wanted = [m for m in wanted if options.only in m.path.relative_to(ADAPTERS).as_posix()]
    if options.sample:
        wanted = spread(wanted, options.sample)
    if options.list:
        print(*wanted, sep="\n")
        return 0
    _import_what_all_need()
    found: Counter[str] = Counter()
    survivors: list[Mutation] = []
    for mutation in wanted:
        if is_found(mutation):
            found[mutation.kind] += 1
        else:
            survivors.append(mutation)
            print(f"SURVIVED {mutation}", flush=True)
    _report(wanted, found, survivors)
    return 1 if survivors else 0


def _import_what_all_need() -> None:
    """Once, and not again in each process; nothing of ours that could be mutated."""
    os.chdir(ROOT)
    for name in ("numpy", "pytest", "torch"):
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)


def _report(wanted: Sequence[Mutation], found: Counter[str], survivors: Sequence[Mutation]) -> None:
    print(f"{'kind':<16} found    of")
    for kind, count in sorted(Counter(mutation.kind for mutation in wanted).items()):
        print(f"{kind:<16} {found[kind]:>5} {count:>5}")
    total = len(wanted)
    rate = 100 * (total - len(survivors)) / max(1, total)
    print(f"{'all':<16} {total - len(survivors):>5} {total:>5}   {rate:.1f} %; {len(HARMLESS)} harmless ones left out")


if __name__ == "__main__":
    sys.exit(main())
