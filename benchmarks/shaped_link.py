"""A link of a known rate and delay between two network namespaces; this module is also the process that is the link.

Packets go from one TUN device to the other by way of this process, which sends each when a wire of that rate would have
taken it, and so much later. Kernels without `netem` have that too.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import queue
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

MTU = 9000
_SET_INTERFACE, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
_NEW_NETWORK = 0x40000000


class LinkError(RuntimeError):
    """There can be no link here; one line that says why."""


class ShapedLink:
    """Two namespaces, ``10.77.0.1`` and ``10.77.0.2``, and nothing else that they reach.

    Args:
        bits_per_second, delay_s: the rate and the delay of each direction, as packets see them.
    """

    addresses = ("10.77.0.1", "10.77.0.2")

    def __init__(self, bits_per_second: float, delay_s: float) -> None:
        self.namespaces = [f"atom-{os.getpid()}-{end}" for end in "ab"]
        self._undo = contextlib.ExitStack()
        try:
            devices = [self._make_end(end) for end in range(2)]
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            raise LinkError(f"no link between network namespaces: {error}; it takes Linux, `ip` and root") from None
        command = [sys.executable, "-m", "benchmarks.shaped_link", str(bits_per_second), str(delay_s)]
        relay = subprocess.Popen(
            [*command, *map(str, devices)], pass_fds=devices, cwd=Path(__file__).parent.parent, stdin=subprocess.DEVNULL
        )
        self._undo.callback(relay.wait)
        self._undo.callback(relay.kill)
        self.pid = relay.pid

    def command_in(self, end: int) -> list[str]:
        """What a command begins with that is to run at one end."""
        return ["ip", "netns", "exec", self.namespaces[end]]

    def enter(self, end: int) -> None:
        """Let this thread, and what it starts from now on, be at one end until the link is closed."""
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self._undo.callback(os.close, own)
        self._undo.callback(_enter, own)
        with open(f"/run/netns/{self.namespaces[end]}") as namespace:
            _enter(namespace.fileno())

    def close(self) -> None:
        """Remove it."""
        self._undo.close()

    def _make_end(self, end: int) -> int:
        """A namespace with its device; the file by which the device's packets come and go."""
        name, device = self.namespaces[end], f"atom{os.getpid() % 100000}{'ab'[end]}"
        _ip("netns", "add", name)
        self._undo.callback(_ip, "netns", "del", name)
        file = os.open("/dev/net/tun", os.O_RDWR)
        self._undo.callback(os.close, file)
        fcntl.ioctl(file, _SET_INTERFACE, struct.pack("16sH22x", device.encode(), _TUN_WITHOUT_HEADER))
        _ip("link", "set", device, "netns", name)
        _ip("-n", name, "addr", "add", f"{self.addresses[end]}/24", "dev", device)
        _ip("-n", name, "link", "set", device, "mtu", str(MTU), "up")
        _ip("-n", name, "link", "set", "lo", "up")
        return file


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _NEW_NETWORK):
        raise LinkError(f"a network namespace cannot be entered: {os.strerror(ctypes.get_errno())}")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def main(arguments: Sequence[str]) -> None:
    """Be the link between two devices, until killed."""
    rate, delay_s = map(float, arguments[:2])
    one, other = map(int, arguments[2:])
    threading.Thread(target=_carry, args=(one, other, rate, delay_s), daemon=True).start()
    _carry(other, one, rate, delay_s)


def _carry(source: int, target: int, bits_per_second: float, delay_s: float) -> None:
    on_the_wire: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
    threading.Thread(target=_deliver, args=(target, on_the_wire), daemon=True).start()
    free_at = 0.0
    while True:
        packet = os.read(source, 1 << 16)
        free_at = max(free_at, time.monotonic()) + 8 * len(packet) / bits_per_second
        on_the_wire.put((free_at + delay_s, packet))


def _deliver(target: int, on_the_wire: queue.SimpleQueue[tuple[float, bytes]]) -> None:
    while True:
        due, packet = on_the_wire.get()
        if (wait := due - time.monotonic()) > 0:
            time.sleep(wait)
        os.write(target, packet)


if __name__ == "__main__":
    main(sys.argv[1:])
