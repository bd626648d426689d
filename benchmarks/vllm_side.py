"""vLLM as one side of a comparison: this module runs in vLLM's environment and answers as `benchmarks.sides` does.

Its engine and its workers run on by themselves, as they do for users, so a turn is a batch of requests of just the
tokens that are timed: a step is the time from one round of outputs to the next.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import itertools
import json
import os
import random
import sys
import time
from typing import Any

# Workers look out for the next step in a busy loop this long before they sleep: the other side must not see that.
SECONDS_TO_SLEEP = 1.2


class VllmSide:
    """`vllm.LLM` on token ids, driven output by output."""

    def __init__(self, path: str, **settings: Any) -> None:
        from vllm import LLM

        self._engine = LLM(model=path, skip_tokenizer_init=True, seed=0, **settings).llm_engine
        self._vocab_size: int = self._engine.model_config.get_vocab_size()
        self._random = random.Random(0)
        self._count = 0
        self._turn: Any = None

    def prepare(self, kind: str, *, batch_size: int = 1, context: int = 0, num_tokens: int = 0) -> None:
        """What the turns that follow time: "decoder" or "prefiller" steps."""
        if kind == "prefiller":
            self._turn = lambda warm_up, steps: self._prefills(num_tokens, warm_up, steps)
            return
        # The prefix cache spares the turns after the first most of these prompts.
        prompts = [self._prompt(context) for _ in range(batch_size)]
        self._turn = lambda warm_up, steps: self._decodes(prompts, warm_up, steps)

    def turn(self, warm_up: int, steps: int) -> list[float]:
        """Seconds of each of `steps` steps, after `warm_up` untimed ones."""
        seconds = self._turn(warm_up, steps)
        time.sleep(SECONDS_TO_SLEEP)
        return seconds

    def greedy(self, token_ids: list[int], num_tokens: int) -> list[int]:
        """The most likely continuation."""
        [tokens] = self._generate([token_ids], num_tokens)[0].values()
        return tokens

    def _prefills(self, num_tokens: int, warm_up: int, steps: int) -> list[float]:
        seconds = []
        for _ in range(warm_up + steps):
            prompt = self._prompt(num_tokens)
            start = time.perf_counter()
            self._generate([prompt], 1)
            seconds.append(time.perf_counter() - start)
        return seconds[warm_up:]

    def _decodes(self, prompts: list[list[int]], warm_up: int, steps: int) -> list[float]:
        # Prompts may take several steps, in which the first of them decode already: only full rounds count.
        _, rounds = self._generate(prompts, len(prompts) + warm_up + steps + 1)
        whole = [moment for moment, outputs in rounds if outputs == len(prompts)]
        return [after - before for before, after in itertools.pairwise(whole)][-steps:]

    def _generate(
        self, prompts: list[list[int]], num_tokens: int
    ) -> tuple[dict[str, list[int]], list[tuple[float, int]]]:
        """Tokens by request, and for each round of outputs its moment and how many requests it is of."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        for prompt in prompts:
            self._count += 1
            self._engine.add_request(str(self._count), {"prompt_token_ids": prompt}, params)
        tokens: dict[str, list[int]] = {}
        rounds: list[tuple[float, int]] = []
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            rounds.append((time.perf_counter(), len(outputs)))
            tokens |= {output.request_id: list(output.outputs[0].token_ids) for output in outputs}
        return tokens, rounds

    def _prompt(self, num_tokens: int) -> list[int]:
        return [self._random.randrange(min(100, self._vocab_size // 2), self._vocab_size) for _ in range(num_tokens)]


def main() -> None:
    """Serve it over standard input and output."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever vLLM prints must not mix with answers
    side = VllmSide(**json.loads(sys.argv[1]))

    def answer(value: Any) -> None:
        answers.write(json.dumps({"answer": value}) + "\n")
        answers.flush()

    answer("ready")
    for line in sys.stdin:
        request = json.loads(line)
        what = request.pop("what")
        if what == "prepare":
            side.prepare(request["kind"], **request["scenario"])
            answer("ready")
        elif what == "turn":
            answer(side.turn(**request))
        else:
            answer(side.greedy(**request))


if __name__ == "__main__":
    main()
