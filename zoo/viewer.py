"""Evaluated episodes as one HTML page, for ``zoo view``. Standard library only, so that it is quick; the page needs no network.

Everything in a log was written by a model or a world, so all of it is escaped, and the page may run and load nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from types import NoneType
from typing import Any

from zoo.errors import ConfigError

Data = dict[str, Any]

# What a line must hold: a type (or several), a list of one shape, an object with these keys; "?" marks one that may be absent.
_SHAPE = {
    "task": {"seed": int, "split": str, "options": dict},
    "behaviour": dict,
    "reward": (int, float, NoneType),
    "success": bool,
    "finish": str,
    "turns": [{"observation": str, "reply": str, "action": (str, NoneType)}],
    "segments": [
        {"tokens": [str], "written": [int], "credit": [(int, float)]}
        | {"source?": [int], "finding?": [int], "selection?": [int], "summary?": [int]}
    ],
    "boundaries": [
        {"segment": int, "turn": int, "chosen": [int], "kept": [int], "text": str, "valid": bool}
        | {"records": [{"turn": int, "action": str, "finding": str}]}
    ],
    "info": dict,
}
_TAGS = {
    "source": "turn {}",
    "finding": "finding about turn {}",
    "selection": "choice of records",
    "summary": "summary",
}
_PER_TOKEN = ("tokens", "written", "credit")
_LEGEND = (
    "Colour is the credit of a token: the advantage it would be trained with, by the rule of the method that played, if the "
    "advantage of its episode were +1 where it succeeded, &minus;1 where it failed and 0 where its world did. "
    '<span class="pos" style="--w:1">Green</span> is positive, <span class="neg" style="--w:1">red</span> negative, '
    '<span class="pos" style="--w:.3">paler</span> is less; 1 and more have the full colour. '
    '<span class="none">Grey</span> was written by the policy and gets no credit. Plain text is what the policy was shown: '
    "prompts and observations, which are never trained on."
)

_STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1c2128; --dim: #667080; --line: #dfe3e8;
  --soft: #f0f2f5; --none: #d5dae1; --pos: 34 160 90; --neg: 220 60 60; --link: #2563c9; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --card: #1d2127; --ink: #dde2e8; --dim: #8f9aa8;
  --line: #323841; --soft: #252a31; --none: #444c57; --pos: 50 180 105; --neg: 235 85 85; --link: #7fb0ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.5rem; } h2 { margin: 0 0 .5rem; font-size: 1.2rem; } h3 { margin: 1rem 0 .5rem; font-size: 1rem; }
small, .legend, th { color: var(--dim); font-weight: normal; } small { font-size: .85rem; }
a { color: var(--link); text-decoration: none; }
nav, article { background: var(--card); border: 1px solid var(--line); border-radius: 10px; margin: 1rem 0; padding: 1rem 1.25rem; }
article { scroll-margin-top: 1rem; } article:target { border-color: var(--link); }
nav { padding: .5rem; max-height: 26rem; overflow: auto; } nav ol { list-style: none; margin: 0; padding: 0; }
nav a { display: grid; grid-template-columns: 3rem 1fr; padding: .2rem .6rem; border-radius: 6px; color: inherit; }
nav a:hover { background: var(--soft); } nav b { color: var(--link); }
.card { display: grid; grid-template-columns: 1fr 6rem 7rem 9rem 5.5rem 6rem; gap: .5rem;
  align-items: baseline; font-variant-numeric: tabular-nums; }
.badge { border-radius: 99px; padding: .1rem .6rem; font-size: .8rem; background: var(--soft); }
.good { background: rgb(var(--pos) / .2); color: rgb(var(--pos)); } .bad { color: rgb(var(--neg)); }
.badge.bad { background: rgb(var(--neg) / .15); }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--dim); font-size: .85rem; }
section { border-top: 1px solid var(--line); margin-top: 1rem; }
aside { background: var(--soft); border-left: 4px solid var(--link); border-radius: 6px; margin: 1rem 0;
  padding: .1rem 1rem .6rem; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); }
td:first-child { color: var(--dim); width: 3rem; }
pre, .text, .code { margin: .3rem 0; white-space: pre-wrap; overflow-wrap: anywhere; }
td .text, td .code { margin: 0; max-height: 16rem; overflow: auto; }
pre, .code { font-family: ui-monospace, monospace; font-size: .85rem; }
.tokens { background: var(--soft); border-radius: 6px; padding: .6rem .8rem; line-height: 1.7; max-height: 40rem; overflow: auto; }
.pos, .neg, .none { border-radius: 3px; padding: .1rem 0; } .none { background: var(--none); }
.pos { background: rgb(var(--pos) / calc(.12 + .5 * var(--w))); }
.neg { background: rgb(var(--neg) / calc(.12 + .5 * var(--w))); text-decoration: underline dotted; }
.chosen td:last-child { color: rgb(var(--pos)); font-weight: 600; } .dropped { opacity: .55; } .legend span { color: var(--ink); }
@media (max-width: 50rem) { .card { grid-template-columns: 1fr 1fr 1fr; } }
"""


def view(path: str, out: str = "") -> Path:
    """Write the page of a trajectory log.

    Args:
        path: a ``trajectories.jsonl``.
        out: the page; by default the log's name with ``.html``, beside it.

    Returns:
        Where the page is.

    Raises:
        ConfigError: the log cannot be read, or the page cannot be written.
    """
    log = Path(path)
    try:
        page = render(read(log), log.name)
        target = Path(out) if out else log.with_suffix(".html")
        if target.resolve() == log.resolve():
            raise ConfigError(f"{target} is the log itself: name another file with -o")
        target.write_text(page, encoding="utf-8", errors="xmlcharrefreplace")
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from error
    return target


def read(path: Path) -> list[Data]:
    """The episodes of a trajectory log, each as ``callbacks.reports.describe`` made it.

    Raises:
        ConfigError: no episodes, or a line that is none; names the file, the line and the reason.
        OSError: the file cannot be read.
    """
    episodes = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                episodes.append(_episode(line))
            except ValueError as error:
                raise ConfigError(f"{path}, line {number}: {error}") from error
    if not episodes:
        raise ConfigError(f"{path} holds no episodes")
    return episodes


def _episode(line: bytes) -> Data:
    try:
        episode: Data = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON, {error.msg} at column {error.colno}") from error
    _check(episode, _SHAPE, "")
    for place, segment in enumerate(episode["segments"]):
        if len({len(segment[name]) for name in (*_PER_TOKEN, *_TAGS) if name in segment}) > 1:
            raise ValueError(f"segments[{place}] has lists of different lengths")
    return episode


def _check(value: Any, shape: Any, place: str) -> None:
    """Raise a ``ValueError`` that says where ``value`` is not of the shape."""
    types = shape if isinstance(shape, tuple) else (shape if isinstance(shape, type) else type(shape),)
    if not isinstance(value, types):
        wanted = " or ".join("null" if kind is NoneType else kind.__name__ for kind in types)
        raise ValueError(f"{place or 'the episode'} is {type(value).__name__}, not {wanted}")
    if isinstance(shape, list):
        for index, item in enumerate(value):
            _check(item, shape[0], f"{place}[{index}]")
    elif isinstance(shape, dict):
        for key, part in shape.items():
            name = key.rstrip("?")
            if name in value:
                _check(value[name], part, f"{place}.{name}".lstrip("."))
            elif name == key:
                raise ValueError(f"{place or 'the episode'} has no {key!r}")


def render(episodes: Sequence[Data], title: str = "Episodes") -> str:
    """A whole page: an index and every episode."""
    solved = sum(episode["success"] for episode in episodes)
    index = "".join(
        f'<li><a href="#episode-{number}"><b>{number}</b>{card(episode)}</a></li>'
        for number, episode in enumerate(episodes, 1)
    )
    shown = "\n".join(render_episode(episode, number) for number, episode in enumerate(episodes, 1))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f'<body><header id="top"><h1>{escape(title)}</h1>'
        f"<p>{_count(len(episodes), 'episode')}, {solved} solved.</p>"
        f'<p class="legend">{_LEGEND}</p></header>\n<nav><ol>{index}</ol></nav>\n{shown}\n</body></html>\n'
    )


def card(episode: Data) -> str:
    """One line on an episode: task, outcome, reward, finish reason, size."""
    task, reward = episode["task"], episode["reward"]
    options = "".join(f" {key}={value}" for key, value in task["options"].items())
    outcome = ("dropped", "") if reward is None else ("success", "good") if episode["success"] else ("failure", "bad")
    cells = (
        f"{task['split']} {task['seed']}{options}",
        "no reward" if reward is None else f"reward {reward:g}",
        episode["finish"],
        _count(len(episode["turns"]), "turn"),
        _count(len(episode["segments"]), "context"),
    )
    texts = [f"<span>{escape(cell)}</span>" for cell in cells]
    badge = f'<span><span class="badge {outcome[1]}">{outcome[0]}</span></span>'
    return f'<span class="card">{texts[0]}{badge}{"".join(texts[1:])}</span>'


def render_episode(episode: Data, number: int = 1) -> str:
    """One episode, context by context, with what the memory kept between them."""
    facts = json.dumps({key: episode[key] for key in ("task", "behaviour", "info")}, indent=2, ensure_ascii=False)
    ends = {boundary["segment"]: boundary for boundary in episode["boundaries"]}
    parts, first, turns = [], 0, list(enumerate(episode["turns"]))
    for place, segment in enumerate(episode["segments"]):
        boundary = ends.get(place)
        behind = boundary["turn"] + 1 if boundary else len(turns)
        parts.append(_context(f"Context {place + 1} of {len(episode['segments'])}", segment, turns[first:behind]))
        parts.append(_boundary(boundary) if boundary else "")
        first = behind
    return (
        f'<article id="episode-{number}"><h2>Episode {number} <a href="#top" title="to the index">↑</a></h2>'
        f"{card(episode)}<details><summary>Task and world</summary><pre>{escape(facts)}</pre></details>"
        f"{''.join(parts)}</article>"
    )


def _context(title: str, segment: Data, turns: Sequence[tuple[int, Data]]) -> str:
    credited = sum(credit != 0 for credit in segment["credit"])
    size = f"{_count(len(segment['tokens']), 'token')}, {sum(segment['written'])} written, {credited} with credit"
    rows = "".join(
        f"<tr><td>{number}</td>{_cell(turn['observation'])}{_cell(turn['reply'])}"
        + (_cell(turn["action"], "code") if turn["action"] is not None else '<td class="bad">unreadable</td>')
        + "</tr>"
        for number, turn in turns
    )
    table = _table(("turn", "observation", "reply", "action"), rows)
    return (
        f"<section><h3>{title} <small>{_count(len(turns), 'turn')} · {size}</small></h3>"
        + (f"<details open><summary>Turns</summary>{table}</details>" if table else "")
        + f'<details open><summary>Tokens</summary><pre class="tokens">{"".join(_tokens(segment))}</pre></details></section>'
    )


def _tokens(segment: Data) -> Iterator[str]:
    """The text of a segment; neighbours that look the same are one element."""
    tags = {name: text for name, text in _TAGS.items() if name in segment}
    columns = zip(segment["written"], segment["credit"], *(segment[name] for name in tags), strict=True)
    marked = zip(columns, segment["tokens"], strict=True)
    for (written, credit, *values), run in groupby(marked, key=lambda pair: pair[0]):
        text = escape("".join(token for _, token in run))
        if not written:
            yield text
            continue
        notes = [note.format(value - 1) for note, value in zip(tags.values(), values, strict=True) if value]
        kind = "pos" if credit > 0 else "neg" if credit < 0 else "none"
        title = ", ".join([*notes, f"credit {credit:+g}" if credit else "no credit"])
        yield f'<span class="{kind}" style="--w:{min(abs(credit), 1):g}" title="{title}">{text}</span>'


def _boundary(boundary: Data) -> str:
    """What was kept and dropped where a context ended, and what the policy wrote there."""
    chooser = "by the policy" if boundary["text"] else "by rule"  # asked for nothing, it wrote nothing
    rows = ""
    for record in boundary["records"]:
        turn, (kind, fate) = record["turn"], ("dropped", "dropped")
        if turn in boundary["kept"]:
            chosen = turn in boundary["chosen"]
            kind, fate = ("chosen", f"kept: chosen {chooser}") if chosen else ("kept", "kept automatically")
        cells = f"<td>{turn}</td>{_cell(record['action'], 'code')}{_cell(record['finding'])}<td>{fate}</td>"
        rows += f'<tr class="{kind}">{cells}</tr>'
    table = _table(("turn", "action", "finding", "memory"), rows)
    seen = ", ".join(map(str, sorted({*boundary["kept"], boundary["turn"]})))
    badge = "" if boundary["valid"] else ' <span class="badge bad">unreadable</span>'
    asked = boundary["text"] or not boundary["valid"]
    wrote = f"<p>The policy wrote{badge}</p><pre>{escape(boundary['text'])}</pre>" if asked else ""
    return (
        f"<aside><h3>Boundary after turn {boundary['turn']} <small>turns kept in view: {seen}</small></h3>"
        f"{table}{wrote}</aside>"
    )


def _table(heads: Sequence[str], rows: str) -> str:
    return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{rows}</table>" if rows else ""


def _cell(text: str, kind: str = "text") -> str:
    return f'<td><div class="{kind}">{escape(text)}</div></td>'


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
