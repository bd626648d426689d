"""Every request of a file, answered by an engine of its own through the routes of a server without a port."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from pathlib import Path

from tqdm import tqdm

from atom_core import EngineArgs, SamplingParams
from atom_server.app import create_app
from atom_server.batches.asking import asking
from atom_server.batches.journal import Answer, Journal, entry_of
from atom_server.batches.lines import BatchFile, BatchLine
from atom_server.batches.run import answer_all
from atom_server.cli.terminal.engine_text import running_engine
from atom_server.options import ServerOptions

# Requests that wait behind those that run, so that no place in a batch stays empty.
_WAITING = 64
_MAX_BODY_MB = 1024.0


def answer_file(
    args: EngineArgs, params: SamplingParams, options: ServerOptions, requests: Path, answers: Path, *, is_chat: bool
) -> int:
    """Answer what is not answered yet; the exit status: 1 where a request was refused.

    Args:
        options: what the routes do, but for the size of bodies, which is larger.

    Raises:
        BatchError: a line of the files is not what it should be; nothing has been started then.
    """
    defaults = {"temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k}
    for name, value in (("max_tokens", params.max_tokens), ("seed", params.seed)):
        defaults |= {} if value is None else {name: value}
    batch = BatchFile(path=requests, defaults=defaults, is_chat=is_chat)
    total = batch.check()
    with Journal(answers) as journal:
        if len(journal.answered) < total:
            asyncio.run(_answer(args, options, batch, journal, total))
        if journal.num_refused:
            print(f"{journal.num_refused} of {total} requests were refused: {answers} says why", file=sys.stderr)
        return 1 if journal.num_refused else 0


async def _answer(args: EngineArgs, options: ServerOptions, batch: BatchFile, journal: Journal, total: int) -> None:
    async with running_engine(args) as engine:
        app = create_app(engine, dataclasses.replace(options, max_body_mb=_MAX_BODY_MB))
        at_once = engine.info.max_num_seqs * engine.info.data_parallel_size + _WAITING
        waiting = (line for line in batch if line.custom_id not in journal.answered)
        with tqdm(total=total, initial=len(journal.answered), unit="request", dynamic_ncols=True) as bar:

            async def ask_living(line: BatchLine) -> Answer:
                answer = await ask(line)
                if answer.status >= 500:
                    engine.check_health()  # what a dead engine says is no answer
                return answer

            def keep(line: BatchLine, answer: Answer) -> None:
                journal.add(line, entry_of(line, answer), answer.status)
                bar.update()

            async with asking(app) as ask:
                await answer_all(waiting, ask_living, keep, at_once=at_once)
