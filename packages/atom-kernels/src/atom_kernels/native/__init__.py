"""C kernels for the CPU, compiled at first use with the system's compiler and called through ctypes."""

from atom_kernels.native.library import NativeUnavailableError, load_native, native_unavailable

__all__ = ["NativeUnavailableError", "load_native", "native_unavailable"]
