"""The flags --image and --video of commands in the terminal."""

from __future__ import annotations

import argparse

import pytest

from atom_core.config import ConfigError
from atom_server.cli.main import main
from atom_server.cli.terminal.shown_files import add_shown_args, picture_options, shown_parts


def parsed(*argv):
    parser = argparse.ArgumentParser()
    add_shown_args(parser, "that goes first")
    return parser.parse_args(list(map(str, argv)))


def parts_of(*argv):
    return shown_parts(parsed(*argv))


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


@pytest.mark.parametrize("argv", [[], ["--image-processor", "atom"], ["--image-processor", "checkpoint"]])
def test_a_flag_says_whose_processing_pictures_pass(argv):
    assert picture_options(parsed(*argv)).image_processor == (argv or ["atom"])[-1]


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_commands_in_the_terminal_decode_as_that_flag_says(command, tiny_llama, tmp_path, capsys):
    photo = tmp_path / "photo.png"
    photo.write_bytes(b"file")
    text = ["what is it?"] if command == "generate" else []
    model = ["--model", str(tiny_llama), "--num-kv-blocks", "64"]
    assert main([command, *text, *model, "--image", str(photo), "--image-processor", "checkpoint"]) != 0
    assert "image_processor is 'checkpoint', and LlamaForCausalLM reads text alone here" in capsys.readouterr().err
