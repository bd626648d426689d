"""Code of a local folder that reads its configuration and tokenizer, run once at start, in a process of its own.

It makes data: a folder that holds what the code found, with links to the model's other files. Everything else, here as
without it, reads data alone.
"""

from __future__ import annotations

from atom_core.folder_code.data_folder import FolderCodeError, as_data, code_that_ran, describe

__all__ = ["FolderCodeError", "as_data", "code_that_ran", "describe"]
