"""Steps of mixers with a request that only pads the batch."""

from __future__ import annotations

from dataclasses import replace

from atom_kernels.mixers.cases import MixerStep


def last_is_padding(step: MixerStep) -> MixerStep:
    """The same step of decodes, the last of which is no request: it has no tokens, no blocks and no slot."""
    names = {"seq_lens": 0, "block_table": 0, "slot_mapping": -1}
    changed = {name: getattr(step.geometry, name).clone() for name in names}
    for name, padding in names.items():
        changed[name][-1] = padding
    return replace(step, geometry=replace(step.geometry, **changed))
