"""`SettingsParser`: flags that the environment and a YAML file may give too, and where each value comes from."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import configargparse
import yaml

from atom_core.config.options import options_of
from atom_server import settings

# Their values are nobody's business who looks over a shoulder or reads a log.
_SECRET = ("api_key", "admin_key")
_NO_SETTINGS = ("help", "config_file", "print_config")
_NOT_IN_A_FILE = ("config", "print-config", "help")
_FILE_HELP = "YAML file with settings: the names of flags without dashes in front, in kebab or in snake case."
_PRINT_HELP = "Print every setting and where it comes from, as such a file, and end."


class SettingsFile(configargparse.YAMLConfigFileParser):
    """A mapping of settings. Keys are in kebab or in snake case, values as YAML has them."""

    def parse(self, stream: Any) -> dict[str, Any]:
        """Keys in kebab case, with values as a command line has them; one that is null is left out.

        Raises:
            ConfigFileParserException: it is not YAML, not a mapping, or has a key twice.
        """
        try:
            read = yaml.safe_load(stream)
        except yaml.YAMLError as error:
            cause = " ".join(str(error).split())
            raise configargparse.ConfigFileParserException(f"{stream.name} is not YAML: {cause}") from error
        if read is None:
            return {}
        if not isinstance(read, dict):
            raise configargparse.ConfigFileParserException(
                f"{stream.name} is no mapping of settings, as `max-model-len: 4096` is, but {type(read).__name__}"
            )
        found: dict[str, Any] = {}
        for key, value in read.items():
            name = str(key).replace("_", "-")
            if name in _NOT_IN_A_FILE:
                raise configargparse.ConfigFileParserException(f"{stream.name} has {name}, which is for command lines")
            if name in found:
                raise configargparse.ConfigFileParserException(f"{stream.name} has {name} twice")
            found[name] = _as_argument(value)
        return {name: value for name, value in found.items() if value is not None}


class SettingsParser(configargparse.ArgumentParser):
    """The parser of one command.

    A flag on the command line counts before its variable ``ATOM_{FLAG}``, that before `--config FILE`, and that before
    the default. Variables that were read are taken out of the environment, so that no process behind it sees them.

    Args:
        structs: the dataclasses of options that the command has; none leaves it with flags alone.
    """

    def __init__(self, *args: Any, structs: Sequence[type] = (), **keywords: Any) -> None:
        # Where two structs have an option of one name, the first struct's is the flag.
        self._options = {option.name: option for struct in reversed(structs) for option in options_of(struct)}
        if structs:
            keywords |= {"args_for_setting_config_path": ["--config"], "config_arg_help_message": _FILE_HELP}
        super().__init__(
            *args, config_file_parser_class=SettingsFile, add_env_var_help=False, add_config_file_help=False, **keywords
        )
        if structs:
            self.add_argument("--print-config", action="store_true", help=_PRINT_HELP)

    def parse_known_args(
        self, args: Any = None, namespace: Any = None, **_: Any
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse does; flags that are missing come from the environment and from the file."""
        variables = settings.take_flag_variables(self._set_variables()) if self._options else {}
        found, rest = super().parse_known_args(args, namespace, env_vars=variables)
        if strange := [key for key, (action, _) in self._of_file() if action is None]:
            self.error(
                f"{found.config_file} has {strange[0]!r}, which is no setting of {self.prog}{self._nearest(strange[0])}"
            )
        return found, rest

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        try:
            return super()._get_values(action, arg_strings)  # type: ignore[misc]
        except argparse.ArgumentError as error:
            for source, (found, _) in self._sources():
                if found is action:
                    error.message += f" ({source})"
            raise

    def settings_lines(self, args: argparse.Namespace) -> Iterator[str]:
        """Every setting as a line of a `--config` file, with a remark that says where it comes from.

        Args:
            args: what this parser made of the command line.
        """
        sources = {action.dest: source for source, (action, _) in self._sources()}
        for group in self._action_groups:
            actions = [action for action in group._group_actions if self._is_setting(action)]
            if actions and group.title:
                yield f"# {group.title}"
            for action in actions:
                yield self._line(action, getattr(args, action.dest), sources.get(action.dest))

    def _line(self, action: argparse.Action, value: Any, source: str | None) -> str:
        name, option = action.dest.replace("_", "-"), self._options.get(action.dest)
        default = action.default if option is None else option.default
        if value is None or (option is None and source is None and value == default):
            return f"# {name}: unset" if default is None else f"{name}: {json.dumps(default)}  # default"
        if action.dest in _SECRET:
            return f"# {name}: not shown  # {source or 'command line'}"
        return f"{name}: {json.dumps(value)}  # {source or 'command line'}"

    def _sources(self) -> Iterator[tuple[str, tuple[argparse.Action, Any]]]:
        """What the environment and the file gave, with words for where that is."""
        found = getattr(self, "_source_to_settings", {})
        given = {word.partition("=")[0] for word in found.get("command_line", {}).get("", (None, []))[1]}
        # The command line may have a flag in its other spelling.
        overridden = {action.dest for action in self._actions if given & set(action.option_strings)}
        variables = found.get("environment_variables", {}).items()
        for source, pair in [(f"environment, {name}", pair) for name, pair in variables] + [
            ("file", (action, value)) for _, (action, value) in self._of_file() if action is not None
        ]:
            if pair[0].dest not in overridden:
                yield source, pair

    def _of_file(self) -> Iterator[tuple[str, tuple[argparse.Action | None, Any]]]:
        for source, found in getattr(self, "_source_to_settings", {}).items():
            if source.startswith("config_file|"):
                yield from found.items()

    def _set_variables(self) -> list[str]:
        """Give each setting its variable, and to shells the values that it may have; the names of the variables."""
        names = []
        for action in filter(self._is_setting, self._actions):
            names.append(name := f"ATOM_{action.dest.upper()}")
            choices = option.choices if (option := self._options.get(action.dest)) else None
            vars(action).update(env_var=name, **({"completer": _completer(choices)} if choices else {}))
        return names

    def _is_setting(self, action: argparse.Action) -> bool:
        return bool(action.option_strings) and action.help != argparse.SUPPRESS and action.dest not in _NO_SETTINGS

    def _nearest(self, key: str) -> str:
        known = [action.dest.replace("_", "-") for action in self._actions if self._is_setting(action)]
        near = difflib.get_close_matches(key, known, n=1)
        return f"; did you mean {near[0]}?" if near else ""


def _completer(choices: Sequence[Any]) -> Callable[..., list[str]]:
    return lambda **_: [str(choice) for choice in choices]


def _as_argument(value: Any) -> Any:
    if value is None or isinstance(value, list):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, dict) else str(value)
