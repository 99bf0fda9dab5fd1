"""The ``zoo`` command. What needs no torch is answered at once; the rest is handed to LightningCLI."""

import difflib
import sys

from zoo import cards, listing, stages, viewer
from zoo.errors import ConfigError

_QUICK = {"list": "[PATTERN]", "show": "NAME", "view": "FILE [-o OUT]", "run": "FOLDER [--key value ...]"}
_COMMANDS = ("fit", "validate", "test", "predict", *_QUICK)
_HELP = """usage: zoo COMMAND ...
  zoo fit  --config X.yaml [--key value ...]   train
  zoo test --config X.yaml --model.weights W   evaluate on held-out tasks (validate, predict likewise)
  zoo run  FOLDER [--key value ...]            a chain of such commands, resumable
  zoo list [PATTERN]                           checkpoints of the zoo
  zoo show NAME                                one checkpoint's card
  zoo view FILE [-o OUT]                       evaluated episodes (trajectories.jsonl) as a page for the browser
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
        elif command in _QUICK:
            print(_answer(command, args[1:]))
        elif command not in _COMMANDS:
            near = difflib.get_close_matches(command, _COMMANDS, n=1)
            raise ConfigError(f"no command {command!r}: {f'did you mean {near[0]}?' if near else 'see `zoo --help`'}")
        else:
            from zoo.commands import run

            run(args)
    except (ConfigError, cards.WeightsError) as error:
        sys.exit(fail(str(error)))


def _answer(command: str, args: list[str]) -> str:
    match command, *args:
        case ("list",) | ("list", _):
            return listing.format_list(cards.list_cards(*args))
        case "show", name:
            return listing.format_card(cards.read_card(name))
        case ("view", file) | ("view", file, "-o", _) if file[:1] != "-":
            return str(viewer.view(file, *args[2:]))
        case "run", folder, *options:
            return stages.run_stages(folder, options)
    raise ConfigError(f"usage: zoo {command} {_QUICK[command]}")


def fail(message: str) -> int:
    """Say in one line why a command is refused; the exit status."""
    print("zoo:", *message.split(), file=sys.stderr)
    return 2
