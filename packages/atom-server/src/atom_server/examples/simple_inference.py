"""Generate from four prompts at once: shows that a model loads and answers.

python -m atom_server.examples.simple_inference --model smollm2 --temperature 0.6
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from atom_core import EngineArgs, LLMEngine, SamplingParams
from atom_server.cli.logs import configure_logging
from atom_server.startup import load_template

PROMPTS = (
    "Introduce yourself.",
    "List all prime numbers below 100.",
    "1 + 2 + 3 = ?",
    "如何在一个月内增肌十公斤?",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Load the model, warm it up, generate, print."""
    parser = argparse.ArgumentParser(
        "simple_inference", description="Generate from four prompts in English and Chinese.", allow_abbrev=False
    )
    parser.add_argument("--temperature", type=float, default=0.6, help="(default: %(default)s)")
    parser.add_argument(
        "--max-tokens", "--max_tokens", type=int, default=256, dest="max_tokens", help="(default: %(default)s)"
    )
    EngineArgs.add_cli_args(parser)
    args = parser.parse_args(arguments)
    configure_logging()

    engine = EngineArgs.from_cli_args(args).create_engine()
    try:
        prompts = chat_prompts(engine, PROMPTS)
        engine.generate(["warm up"], SamplingParams(temperature=args.temperature, max_tokens=4))
        outputs = engine.generate(prompts, SamplingParams(temperature=args.temperature, max_tokens=args.max_tokens))
        for prompt, output in zip(prompts, outputs, strict=True):
            print(f"\nPrompt: {prompt!r}\nCompletion: {output['text']!r}")
        engine.print_mtp_statistics()
    finally:
        engine.close()
    return 0


def chat_prompts(engine: LLMEngine, texts: Sequence[str]) -> list[str]:
    """Each text as a user's turn in the model's chat template; as it stands where the model has none."""
    template = load_template(engine.tokenizer, None)
    if template is None:
        return list(texts)
    return [template.render([{"role": "user", "content": text}], {"enable_thinking": True}) for text in texts]


if __name__ == "__main__":
    sys.exit(main())
