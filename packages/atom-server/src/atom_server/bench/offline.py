"""An engine in this process, measured without a server: throughput of many prompts, latency of one batch."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atom_server.bench.metrics import percentile
from atom_server.bench.outcome import BenchError

if TYPE_CHECKING:
    from atom_core import LLMEngine

_PERCENTILES = (10, 25, 50, 75, 90, 99)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Prompts of random tokens, whose answers have full length."""

    num_prompts: int
    input_len: int
    output_len: int
    seed: int = 0

    def check(self, engine: LLMEngine) -> None:
        """Raise BenchError where a prompt and its answer are longer than the engine takes."""
        most = engine.info.max_model_len
        if self.input_len + self.output_len > most:
            raise BenchError(
                f"--input-len {self.input_len} and --output-len {self.output_len} are more than the {most} tokens that "
                "the engine takes; lower them, or raise --max-model-len"
            )

    def run(self, engine: LLMEngine, *, turn: int = 0) -> tuple[float, list[dict[str, Any]]]:
        """Seconds until all answers are there, and the answers; each turn has other prompts."""
        from atom_core import SamplingParams

        source = random.Random(f"{self.seed}/{turn}")
        vocab_size = engine.info.vocab_size
        prompts = [[source.randrange(vocab_size) for _ in range(self.input_len)] for _ in range(self.num_prompts)]
        params = SamplingParams(temperature=0.0, max_tokens=self.output_len, ignore_eos=True)
        started = time.perf_counter()
        outputs = engine.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        if errors := [output["error"] for output in outputs if output["error"]]:
            raise BenchError(f"a prompt failed in the engine: {errors[0]}")
        return seconds, outputs


def measure_throughput(engine: LLMEngine, batch: Batch) -> dict[str, Any]:
    """All prompts at once, after a small batch that warms up; under the keys of `vllm bench throughput`."""
    batch.check(engine)
    Batch(num_prompts=1, input_len=batch.input_len, output_len=min(4, batch.output_len)).run(engine, turn=-1)
    seconds, outputs = batch.run(engine)
    num_output = sum(output["num_tokens_output"] for output in outputs)
    num_tokens = num_output + sum(output["num_tokens_input"] for output in outputs)
    return {
        "elapsed_time": seconds,
        "num_requests": len(outputs),
        "total_num_tokens": num_tokens,
        "requests_per_second": len(outputs) / seconds,
        "tokens_per_second": num_tokens / seconds,
        "output_tokens_per_second": num_output / seconds,
    }


def measure_latency(engine: LLMEngine, batch: Batch, *, num_warmups: int, num_turns: int) -> dict[str, Any]:
    """The same batch again and again; under the keys of `vllm bench latency`."""
    batch.check(engine)
    for turn in range(num_warmups):
        batch.run(engine, turn=-1 - turn)
    latencies = [batch.run(engine, turn=turn)[0] for turn in range(num_turns)]
    return {
        "avg_latency": statistics.fmean(latencies),
        "latencies": latencies,
        "percentiles": {str(share): percentile(latencies, share) for share in _PERCENTILES},
    }
