"""The engine's own process: ``python -m atom_core.engine.process.core_process``, started by `AsyncEngine`.

It reads one `EngineStart` as a line of JSON from standard input, which stays open for as long as the parent lives.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import queue
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec
import zmq

from atom_core import settings
from atom_core.engine.engine_core import EngineCore
from atom_core.engine.process.news_slices import slices_of
from atom_core.engine.process.wire import (
    ENCODER,
    TO_ENGINE,
    AbortRequests,
    AddRequests,
    EngineStart,
    Failed,
    FromEngine,
    ListRequests,
    LoadAdapter,
    News,
    Pause,
    Profile,
    Pulse,
    Ready,
    Reply,
    ResetPrefixCache,
    Shutdown,
    Sleep,
    ToEngine,
    UnloadAdapter,
    WakeUp,
    news_address,
    request_address,
)
from atom_core.errors import AdapterError, EngineBusyError, EngineDeadError, ProfilerError
from atom_core.failure import Failure
from atom_core.garbage import kept_for_good
from atom_core.log_lines import LineFormatter
from atom_core.messages import EngineOutput, NamedAdapter

logger = logging.getLogger(__name__)

PULSE_SECONDS = 0.5


def main() -> int:
    """Start the engine, serve until told to stop; 0 after a shutdown, 1 after a failure."""
    # Signals reach the whole group: the parent drains, and then ends this process.
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_IGN)
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineStart)
    _set_up_log(start)
    folders = [folder for folder in (start.folder, start.meeting_folder) if folder is not None]
    threading.Thread(target=_die_with_parent, args=(folders,), daemon=True).start()
    context = zmq.Context()
    sender = _Sender(context, news_address(start.folder))
    try:
        core = _start_core(start)
    except Exception as error:
        sender.send(Failed(Failure.of(error)))
        _close(context, sender)
        return 1
    # Objects made at the start are never garbage, and a full collection over them would stop steps for 0.2 s. Only
    # this process is ours: a program that holds an engine decides for itself.
    gc.freeze()
    try:
        sender.send(Ready(core.info))
        _EngineLoop(core, context, sender, start.folder).run()
    except Exception as error:
        sender.send(Failed(core.failure_behind(error)))
        return 1
    finally:
        _close(context, sender)
        core.close()
    return 0


def _set_up_log(start: EngineStart) -> None:
    several = start.settings.get("data_parallel_size", 1) != 1
    handler = logging.StreamHandler(sys.stderr)
    name = f"engine {start.data_parallel_rank} " if several else ""
    handler.setFormatter(LineFormatter(f"%(levelname)s {name}%(name)s: %(message)s"))
    # All engines say the same as they start; what differs is a warning.
    logging.basicConfig(level=settings.log_level() if start.data_parallel_rank == 0 else "WARNING", handlers=[handler])


def _start_core(start: EngineStart) -> EngineCore:
    from atom_core.config import EngineArgs
    from atom_core.config.devices import traits_of
    from atom_core.engine.startup import resolve
    from atom_models import open_checkpoint

    args = EngineArgs.from_keywords(**start.settings)
    started = time.perf_counter()
    # Whoever starts a process waits until it is ready.
    waited_for = dataclasses.replace(args, warmup=args.warmup or "full")
    with kept_for_good():
        config = resolve(waited_for, open_checkpoint(start.model_path), data_parallel_rank=start.data_parallel_rank)
    if start.meeting_folder is not None:
        parallel = dataclasses.replace(config.parallel, meeting_folder=Path(start.meeting_folder))
        config = dataclasses.replace(config, parallel=parallel)
    if args.warmup is None and traits_of(config.device).has_graphs:
        line = "warmup = full: requests come once the server is ready, and then wait for no compiler"
        config = dataclasses.replace(config, choices=(*config.choices, line))
    resolved = time.perf_counter() - started
    core = EngineCore(config)
    core.info.timings.update({"import torch, probe the machine": resolved})
    return core


class Called:
    """Another engine begins a step, in which this one has to take part."""


class _EngineLoop:
    """Takes messages, steps, sends news."""

    def __init__(self, core: EngineCore, context: zmq.Context, sender: _Sender, folder: str) -> None:
        self._core = core
        self._context = context
        self._sender = sender
        self._inbox: queue.SimpleQueue[ToEngine | Called | Exception] = queue.SimpleQueue()
        self._running = True
        self._num_steps = 0
        self._longest_step = 0.0
        self._is_idle = True
        self._is_paused = False
        self._has_ended = threading.Event()
        core.on_call(lambda: self._inbox.put(Called()))
        for target in (self._receive, self._beat):
            threading.Thread(target=target, args=(folder,), daemon=True).start()

    def run(self) -> None:
        """Run until a `Shutdown` comes; an exception means that the engine is dead."""
        try:
            self._run()
        finally:
            self._has_ended.set()

    def _run(self) -> None:
        core = self._core
        while self._running:
            if self._is_paused or not core.has_unfinished():
                self._is_idle = True
                while not self._is_paused and self._inbox.empty() and core.prepare():
                    pass
                self._handle(self._inbox.get())
                self._is_idle = False
            with contextlib.suppress(queue.Empty):
                while True:
                    self._handle(self._inbox.get_nowait())
            if self._is_paused:
                self._tell(core.settle())
                core.take_part()
            elif core.has_unfinished() and self._running:
                begun = time.monotonic()
                news = core.step()
                self._num_steps += 1
                self._longest_step = max(self._longest_step, time.monotonic() - begun)
                self._tell(news)

    def _tell(self, news: list[EngineOutput]) -> None:
        for part in slices_of(news):
            self._sender.send(News(part, self._core.stats()))

    def _handle(self, message: ToEngine | Called | Exception) -> None:
        match message:
            case Called():
                pass  # the loop looks what there is to do
            case AddRequests(submission):
                self._core.add(submission)
            case AbortRequests(request_ids):
                self._core.abort(request_ids)
            case Profile(call_id, start):
                self._sender.send(Reply(call_id, self._profile(start)))
            case ListRequests(call_id):
                self._sender.send(Reply(call_id, requests=self._core.states()))
            case ResetPrefixCache(call_id):
                self._core.reset_prefix_cache()
                self._sender.send(Reply(call_id))
            case Pause(call_id, is_paused):
                self._is_paused = is_paused
                self._tell(self._core.settle())
                self._sender.send(Reply(call_id))
            case Sleep(call_id, level):
                self._tell(self._core.settle())
                self._sender.send(Reply(call_id, self._sleep(level)))
            case WakeUp(call_id):
                self._core.wake_up()
                gc.freeze()
                self._sender.send(Reply(call_id))
            case LoadAdapter(call_id, adapter):
                self._sender.send(Reply(call_id, self._load_adapter(adapter)))
            case UnloadAdapter(call_id, adapter_id):
                self._core.unload_adapter(adapter_id)
                self._sender.send(Reply(call_id))
            case Shutdown():
                self._running = False
            case Exception() as error:
                # Workers are gone, or nobody knows whose request it was, and its caller would wait for ever.
                raise error

    def _sleep(self, level: int) -> str | None:
        gc.unfreeze()  # what the start made may go now
        try:
            self._core.sleep(level)
        except EngineBusyError as error:
            return str(error)
        return None

    def _load_adapter(self, adapter: NamedAdapter) -> str | None:
        try:
            self._core.load_adapter(adapter)
        except AdapterError as error:
            logger.warning("the adapter %s was not loaded: %s", adapter.name, error)
            return str(error)
        return None

    def _profile(self, start: bool) -> str | None:
        try:
            self._core.profile(start=start)
        except ProfilerError as error:
            return str(error)
        except Exception as error:
            logger.exception("profiling failed")
            return f"profiling failed: {type(error).__name__}: {error}"
        return None

    def _receive(self, folder: str) -> None:
        socket = self._context.socket(zmq.PULL)
        socket.set_hwm(0)
        socket.bind(request_address(folder))
        with contextlib.suppress(zmq.ContextTerminated), contextlib.closing(socket):
            while True:
                data = socket.recv()
                try:
                    self._inbox.put(TO_ENGINE.decode(data))
                except msgspec.DecodeError as error:
                    self._inbox.put(error)

    def _beat(self, folder: str) -> None:
        sender = _Sender(self._context, news_address(folder))
        with contextlib.suppress(zmq.ContextTerminated), contextlib.closing(sender):
            waited, num_steps = 0.0, 0
            while True:
                if (failure := self._core.failure) is not None:
                    self._inbox.put(EngineDeadError(failure))  # nothing else tells a loop that waits for requests
                if self._is_idle or self._num_steps != num_steps:
                    waited, num_steps = 0.0, self._num_steps
                stopped = self._core.stopped_ranks if waited else ()
                sender.send(Pulse(waited, self._core.stats(), self._num_steps, self._longest_step, stopped))
                if self._has_ended.wait(PULSE_SECONDS):
                    return
                # Pulses are counted, not the clock: time for which the process was stopped is no fault of a step.
                if not self._core.is_preparing:
                    waited += PULSE_SECONDS


class _Sender:
    """One socket to the API process; each thread has its own."""

    def __init__(self, context: zmq.Context, address: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.set_hwm(0)
        self._socket.linger = 1000
        self._socket.connect(address)

    def send(self, message: FromEngine) -> None:
        self._socket.send(ENCODER.encode(message))

    def close(self) -> None:
        self._socket.close()


def _close(context: zmq.Context, sender: _Sender) -> None:
    """Let the last message out, for at most as long as sockets linger; threads of an `_EngineLoop` end with it."""
    sender.close()
    context.term()


def _die_with_parent(folders: list[str]) -> None:
    """Standard input ends when the parent does, however it ends: leave nothing behind."""
    while sys.stdin.buffer.read(4096):
        pass
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    code = main()
    with contextlib.suppress(OSError):  # the log may be on a full disk
        sys.stderr.flush()
    os._exit(code)  # threads that wait on sockets must not keep the process
