"""The flags --image and --video of commands in the terminal."""

from __future__ import annotations

import argparse

import pytest

from atom_core.config import ConfigError
from atom_server.cli.main import main
from atom_server.cli.terminal.shown_files import add_shown_args, shown_parts


def parts_of(*argv):
    parser = argparse.ArgumentParser()
    add_shown_args(parser, "that goes first")
    return shown_parts(parser.parse_args(list(map(str, argv))))


def test_files_become_parts_of_a_chat_pictures_first(tmp_path):
    film, photo, other = (tmp_path / name for name in ("film.mkv", "photo.JPG", "other.png"))
    for file in (film, photo, other):
        file.write_bytes(b"file")
    assert parts_of() == []
    urls = [part[part["type"]]["url"] for part in parts_of("--video", film, "--image", photo, "--image", other)]
    heads = ("image/jpeg", "image/png", "video/x-matroska")
    assert urls == [f"data:{head};base64,ZmlsZQ==" for head in heads]


def test_a_file_that_cannot_be_shown_is_named_with_its_flag(tmp_path):
    with pytest.raises(
        ConfigError, match=r"--video: .*photo\.png is no video by its name; allowed are names with \.mp4"
    ):
        parts_of("--video", tmp_path / "photo.png")
    with pytest.raises(ConfigError, match=r"--image: .*No such file.*photo\.png"):
        parts_of("--image", tmp_path / "photo.png")


@pytest.mark.parametrize("flag", ["--image", "--video"])
def test_lines_of_a_file_have_parts_of_their_own(flag, tmp_path, capsys):
    files = ["--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")]
    assert main(["generate", *files, flag, "film.mp4"]) != 0
    assert "--image and --video go with a prompt" in capsys.readouterr().err
