"""`run_rank`: the life of a rank's process, whoever started it. Torch-free by itself."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import NoReturn

import numpy as np

from atom_core import settings
from atom_core.config.devices import traits_of
from atom_core.config.sections import EngineConfig
from atom_core.errors import AdapterError, ProfilerError
from atom_core.executor.launchers.connections import listen
from atom_core.executor.processes.channel import Channel
from atom_core.executor.processes.wire import (
    AdapterTaken,
    Answer,
    Failed,
    Forward,
    FromRank,
    Join,
    Joined,
    KeepStore,
    Leave,
    Load,
    LoadAdapter,
    Loaded,
    Prepare,
    Prepared,
    Preparing,
    Profile,
    Profiled,
    Rested,
    Sample,
    Sampled,
    Sleep,
    StoreKept,
    ToRank,
    UnloadAdapter,
    WakeUp,
    decode_to_rank,
    encode,
)
from atom_core.failure import Failure
from atom_core.log_lines import LineFormatter
from atom_core.messages import NamedAdapter
from atom_core.worker.ranks.protocol import ALONE, WorkerRanks
from atom_core.worker.runner import Masks, Runner

logger = logging.getLogger(__name__)

JoinRanks = Callable[[Join], WorkerRanks]
MakeRunner = Callable[[EngineConfig, WorkerRanks], Runner]
# How often a rank looks whether something is captured or compiled.
LOOK_SECONDS = 0.25
_PR_SET_PDEATHSIG = 1


def run_rank(join_ranks: JoinRanks, make_runner: MakeRunner) -> NoReturn:
    """Join the other ranks, do what the engine says until it says to leave, and end the process; 1 after a failure.

    The last two words of the command line are the number of the descriptor by which the engine is reached, and the id
    of the process that started this one, with which it ends.

    Args:
        join_ranks: waits for the others.
        make_runner: gives what runs the steps of a configuration.
    """
    # Signals reach the whole group: the engine ends this process.
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_IGN)
    descriptor, parent_id = map(int, sys.argv[-2:])
    _die_with(parent_id)
    channel = Channel(socket.socket(fileno=descriptor))
    join = _first_message(channel)
    if isinstance(join, KeepStore):
        with listen(join.host) as listener:
            port, descriptor = listener.getsockname()[1], os.dup(listener.fileno())
        channel.send(encode(StoreKept(port, descriptor)))
        join = _first_message(channel)
    if not isinstance(join, Join):
        _leave(1)
    _set_up_log(join.rank)
    _Rank(channel, join, make_runner).run(join_ranks)


class _Rank:
    """Takes messages in order, in one thread; answers go out in order from another, which waits for the device."""

    def __init__(self, channel: Channel, join: Join, make_runner: MakeRunner) -> None:
        self._channel, self._join, self._make_runner = channel, join, make_runner
        self._sending = threading.Lock()
        self._answers: queue.SimpleQueue[Callable[[], Answer]] = queue.SimpleQueue()
        self._ranks: WorkerRanks = ALONE
        self._runner: Runner | None = None
        # Compiled and captured models are in circles of references; others go when nobody refers to them.
        self._is_in_circles = False

    def run(self, join_ranks: JoinRanks) -> NoReturn:
        """Until told to leave, until the engine is gone, or until something fails."""
        try:
            for target in (self._report, self._look):
                threading.Thread(target=target, daemon=True).start()
            self._meet(join_ranks)
            while (data := self._channel.receive()) is not None:
                message = decode_to_rank(data)
                if isinstance(message, Leave):
                    break
                self._handle(message)
            if self._runner is not None:
                self._runner.close()
        except Exception as error:
            self._fail(error)
        _leave(0)

    def _handle(self, message: ToRank) -> None:
        match message:
            case Forward(step):
                self._loaded.forward(step)
            case Sample(masks):
                rank, first = self._join.rank, self._join.meeting.first_that_samples
                if rank >= first:
                    pending = self._loaded.sample(_words(masks))
                    if rank == first:
                        self._answers.put(lambda: Sampled(pending()))
            case Prepare():
                self._answer(Prepared(self._loaded.prepare()))
            case Profile(start):
                self._answer(Profiled(self._profile(start)))
            case Sleep(level):
                gc.unfreeze()  # what the start made goes now
                self._loaded.sleep(level)
                self._answer(Rested())
            case WakeUp():
                self._loaded.wake_up()
                gc.freeze()
                self._answer(Rested())
            case LoadAdapter(adapter):
                self._answer(AdapterTaken(self._load_adapter(adapter)))
            case UnloadAdapter(adapter_id):
                self._loaded.unload_adapter(adapter_id)
                self._answer(AdapterTaken())
            case Load(config):
                self._load(config)
            case _:
                raise RuntimeError(f"a rank that runs was sent {type(message).__name__}")

    def _send(self, message: FromRank) -> None:
        """Tell the engine; one that is gone hears nothing."""
        try:
            with self._sending:
                self._channel.send(encode(message))
        except OSError:
            logger.debug("the engine is gone")

    def _answer(self, answer: Answer) -> None:
        """Answer after all that was asked before: results of steps may still be on their way."""
        self._answers.put(lambda: answer)

    def _fail(self, error: Exception, *, is_loss: bool | None = None) -> NoReturn:
        """Tell the engine why this rank ends, and end."""
        if is_loss if is_loss is not None else self._ranks.is_loss(error):
            failure = Failure("engine", f"the ranks could not exchange: {' '.join(str(error).split())}")
            self._send(Failed(failure, lost_others=True))
        else:
            logger.error("the rank fails", exc_info=error)
            self._send(Failed(Failure.of(error)))
        _leave(1)

    def _meet(self, join_ranks: JoinRanks) -> None:
        try:
            self._ranks = join_ranks(self._join)
        except RuntimeError as error:  # whoever did not come has the cause
            self._fail(error, is_loss=True)
        self._answer(Joined())

    def _load(self, config: EngineConfig) -> None:
        if self._runner is not None:
            self._let_go()
        runner = self._make_runner(config, self._ranks)
        info = runner.load()
        self._runner = runner
        self._is_in_circles = config.compile.level > 0 or traits_of(config.device).has_graphs
        # What a start makes is never garbage, and a full collection over it would stop steps for 0.2 s.
        gc.freeze()
        self._answer(Loaded.of(info))

    def _let_go(self) -> None:
        """Give the memory of what ran back, before another model needs it."""
        self._loaded.close()
        self._runner = None
        if self._is_in_circles:
            gc.unfreeze()
            gc.collect()

    def _load_adapter(self, adapter: NamedAdapter) -> str | None:
        try:
            self._loaded.load_adapter(adapter)
        except AdapterError as error:
            return str(error)
        return None

    @property
    def _loaded(self) -> Runner:
        if self._runner is None:
            raise RuntimeError("a step came before the model was loaded")
        return self._runner

    def _report(self) -> None:
        """Send answers as they come, while the next step is launched."""
        while True:
            answer = self._answers.get()
            try:
                self._send(answer())
            except Exception as error:
                self._fail(error)

    def _look(self) -> None:
        """Tell when a capture or a compilation begins and ends: meanwhile a step may take long."""
        told = False
        while True:
            time.sleep(LOOK_SECONDS)
            runner = self._runner
            if runner is not None and runner.is_preparing != told:
                told = not told
                self._send(Preparing(told))

    def _profile(self, start: bool) -> str | None:
        try:
            self._loaded.profile(start=start)
        except ProfilerError as error:
            return str(error)
        return None


def _first_message(channel: Channel) -> ToRank | None:
    data = channel.receive()
    return None if data is None else decode_to_rank(data)


def _words(masks: Mapping[str, bytes] | None) -> Masks | None:
    return masks and {request_id: np.frombuffer(mask, dtype=np.int32) for request_id, mask in masks.items()}


def _die_with(parent_id: int) -> None:
    """End when the process does that started this one, even while this one is stopped."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_id:
        _leave(1)  # it had gone before


def _set_up_log(rank: int) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(f"%(levelname)s rank {rank} %(name)s: %(message)s"))
    # All ranks say the same; what differs is an error.
    logging.basicConfig(level=settings.log_level() if rank == 0 else "ERROR", handlers=[handler])


def _leave(code: int) -> NoReturn:
    """End at once: threads of collectives may wait for ranks that are gone."""
    sys.stderr.flush()
    os._exit(code)
