"""The ``zoo`` command. What needs no torch is answered at once; the rest is handed to LightningCLI."""

from __future__ import annotations

import difflib
import sys

from zoo.cards import WeightsError, list_cards, read_card
from zoo.errors import ConfigError

_COMMANDS = ("fit", "validate", "test", "predict", "list", "show")
_HELP = """usage: zoo COMMAND ...

  zoo fit  --config X.yaml [--key value ...]   train
  zoo test --config X.yaml --model.weights W   evaluate on held-out tasks (validate, predict likewise)
  zoo list [PATTERN]                           checkpoints of the zoo
  zoo show NAME                                one checkpoint's card
  zoo fit --help                               every option of a run

A config names a model, a datamodule and a trainer; every key can be given on the command line as well, and wins there:
  zoo fit --config configs/actguide/clue_lock.yaml --model.learning_rate 3e-4 --data.group_size 16"""


def main(args: list[str] | None = None) -> None:
    """Run one command; ends the process with status 2 and one line on bad input."""
    args = sys.argv[1:] if args is None else args
    command = args[0] if args else "--help"
    try:
        if command in ("-h", "--help", "help"):
            print(_HELP)
        elif command in ("list", "show"):
            _cards(command, args[1:])
        elif command not in _COMMANDS:
            nearest = difflib.get_close_matches(command, _COMMANDS, n=1)
            sys.exit(
                fail(f"no command {command!r}: {f'did you mean {nearest[0]}?' if nearest else 'see `zoo --help`'}")
            )
        else:
            from zoo.commands import run

            run(args)
    except (ConfigError, WeightsError) as error:
        sys.exit(fail(str(error)))


def _cards(command: str, args: list[str]) -> None:
    from zoo.listing import format_card, format_list

    if command == "list" and len(args) < 2:
        print(format_list(list_cards(*args)))
    elif command == "show" and len(args) == 1:
        print(format_card(read_card(args[0])))
    else:
        sys.exit(fail(f"usage: zoo {command} {'[PATTERN]' if command == 'list' else 'NAME'}"))


def fail(message: str) -> int:
    """Say in one line why a command is refused; the exit status."""
    print("zoo:", *message.split(), file=sys.stderr)
    return 2
