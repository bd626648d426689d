"""The base of everything that is called for each decoder layer at every step."""

from __future__ import annotations

from typing import Any

from torch import nn


class Layer(nn.Module):
    """A module whose call costs one Python frame.

    A decode step makes some 300 calls of modules, and ``nn.Module.__call__`` takes longer than a small model's norm.
    Forward hooks still work; global and backward hooks do not.
    """

    def __call__(self, *args: Any) -> Any:
        if self._forward_hooks or self._forward_pre_hooks:
            return super().__call__(*args)
        return self.forward(*args)
