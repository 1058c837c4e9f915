"""The KV pool block by block: who holds which, what is shared, what is free but still findable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from reports.figures import style

CACHED, FREE = "free, but cached", "free"
_NUMBERED = 64
"""Up to so many blocks are drawn one by one with their numbers."""
_MOST_CELLS = 2_000
_SHADES = (style.BLUE, style.SKY)


@dataclass(frozen=True)
class Block:
    """One block: its number and who holds it; ``findable`` matters when nobody does."""

    number: int
    owners: tuple[str, ...]
    findable: bool = False

    @property
    def state(self) -> str:
        if self.owners:
            return " + ".join(self.owners)
        return CACHED if self.findable else FREE


def pool(blocks: Sequence[Block], order: Sequence[str], columns: int = 8) -> go.Figure:
    """Every block as a numbered cell; ``order`` fixes each request's colour. A hatched cell is shared."""
    if not blocks:
        return style.empty("This pool has no blocks.")
    figure = go.Figure()
    states = sorted({block.state for block in blocks}, key=lambda s: (s == FREE, s == CACHED, s))
    for state in states:
        part = [block for block in blocks if block.state == state]
        figure.add_trace(
            go.Bar(
                x=[(block.number - 1) % columns for block in part],
                y=[0.9] * len(part),
                base=[-((block.number - 1) // columns) - 0.45 for block in part],
                width=0.92,
                marker=_look(part[0], order),
                text=[f"{block.number}<br><b>{style.plain(_letter(block), 24)}</b>" for block in part],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                textfont={"size": 13},
                name=f"{style.plain(state, 40)} (n = {len(part)})",
                hovertemplate=f"block %{{customdata}}: {style.plain(state, 60)}<extra></extra>",
                customdata=[block.number for block in part],
            )
        )
    rows = -(-len(blocks) // columns)
    figure.update_xaxes(visible=False, range=[-0.55, columns - 0.45])
    figure.update_yaxes(visible=False, range=[-rows + 0.45, 0.55])
    return style.finish(
        figure, 96 + 64 * rows, barmode="overlay", bargap=0, margin={"l": 8, "r": 8, "t": 64, "b": 8}
    )


def _letter(block: Block) -> str:
    return "+".join(block.owners) if block.owners else ("cached" if block.findable else "free")


def _look(block: Block, order: Sequence[str]) -> dict[str, object]:
    if not block.owners:
        # Solid, so that the numbers on them can be read on white and on near-black.
        ground, rim = ("#CFE3F1", style.SKY) if block.findable else ("#E6E8EB", style.GREY)
        return {"color": ground, "line": {"color": rim, "width": 1}}
    colours = [style.SERIES[order.index(o) % len(style.SERIES)] for o in block.owners if o in order]
    look: dict[str, object] = {"color": colours[0] if colours else style.BLUE}
    if len(colours) > 1:
        look["pattern"] = {
            "shape": "/",
            "fgcolor": colours[1],
            "bgcolor": colours[0],
            "size": 11,
            "solidity": 0.35,
        }
    return look


@dataclass(frozen=True)
class Held:
    """Blocks that a request holds."""

    request: str
    blocks: int


def by_request(held: Sequence[Held], unexplained: int, cached: int, free: int) -> go.Figure:
    """A pool whose block numbers are not known: cells are grouped by who holds them, then cached, then free.

    Args:
        held: requests in the order in which they are drawn.
        unexplained: blocks in use that no request accounts for.
        cached, free: from the step's counters.
    """
    parts = [(f"{h.request}: {h.blocks} blocks", h.blocks, 2 + i % 2) for i, h in enumerate(held)]
    parts += [
        (f"in use, holder not in the trace: {unexplained} blocks", unexplained, 4),
        (f"{CACHED}: {cached} blocks", cached, 1),
        (f"{FREE}: {free} blocks", free, 0),
    ]
    total = sum(count for _, count, _ in parts)
    if total <= 0:
        return style.empty("This step trace has no KV counters.", 150)
    each = -(-total // _MOST_CELLS)
    kinds: list[int] = []
    words: list[str] = []
    done = 0
    for text, count, kind in parts:
        # Rounded on the running sum, so that the cells of all parts add up to the pool.
        cells = round((done + count) / each) - round(done / each)
        done += count
        kinds += [kind] * cells
        words += [style.plain(text, 80)] * cells
    columns = min(100, max(16, round((len(kinds) * 4) ** 0.5)))
    rows = -(-len(kinds) // columns)
    pad = rows * columns - len(kinds)
    grid = [*kinds, *[None] * pad]
    texts = [*words, *[""] * pad]
    colours = (style.tint_solid(style.GREY), "#CBB26A", *_SHADES, style.VERMILLION)
    scale: list[list[object]] = []
    for index, colour in enumerate(colours):
        scale += [[index / 5, colour], [(index + 1) / 5, colour]]
    figure = go.Figure(
        go.Heatmap(
            z=[grid[r * columns : (r + 1) * columns] for r in range(rows)],
            text=[texts[r * columns : (r + 1) * columns] for r in range(rows)],
            hovertemplate="%{text}<extra></extra>",
            colorscale=scale,
            zmin=-0.5,
            zmax=4.5,
            showscale=False,
            xgap=1,
            ygap=1,
        )
    )
    in_use = sum(h.blocks for h in held)
    legend = [
        (_holders(held), style.BLUE, in_use),
        (f"in use, holder not in the trace (n = {unexplained})", style.VERMILLION, unexplained),
        (f"{CACHED} (n = {cached})", "#CBB26A", cached),
        (f"{FREE} (n = {free})", style.tint_solid(style.GREY), free),
    ]
    for name, colour, count in legend:
        if count:
            marker = {"symbol": "square", "size": 11, "color": colour}
            figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", marker=marker, name=name))
    note = "a cell is a block" if each == 1 else f"a cell stands for {each} blocks"
    figure.update_xaxes(visible=True, showticklabels=False, ticks="", showgrid=False, title_text=note)
    figure.update_yaxes(visible=False, autorange="reversed")
    return style.finish(figure, 124 + max(60, min(260, 12 * rows)), margin={"l": 8, "r": 8, "t": 56, "b": 34})


def _holders(held: Sequence[Held]) -> str:
    holding = [one for one in held if one.blocks]
    count = sum(one.blocks for one in holding)
    if len(holding) == 1:
        return f"held by one request (n = {count})"
    return f"held by {len(holding)} requests, their shades alternate (n = {count})"


@dataclass(frozen=True)
class Mark:
    """What a request did in a step: ``kind`` is prefill, decode, waiting or preempted."""

    step: int
    request: str
    kind: str
    tokens: int


def lives(marks: Sequence[Mark], order: Sequence[str], here: int) -> go.Figure:
    """All steps at a glance: a row per request, a cell per step with its tokens; ``here`` is framed."""
    if not marks:
        return style.empty("No steps to show.")
    figure = go.Figure()
    looks = {
        "prefill": style.ORANGE,
        "decode": style.BLUE,
        "waiting": style.tint_solid(style.GREY),
        "preempted": style.VERMILLION,
    }
    for kind, colour in looks.items():
        part = [m for m in marks if m.kind == kind]
        if not part:
            continue
        figure.add_trace(
            go.Bar(
                orientation="h",
                x=[0.94] * len(part),
                base=[m.step - 0.47 for m in part],
                y=[m.request for m in part],
                width=0.8,
                marker={"color": colour},
                text=[str(m.tokens) if m.tokens else "" for m in part],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                textfont={"color": "#14181D" if kind == "prefill" else "#FFFFFF"},
                name=f"{kind} (n = {len(part)})",
                hovertemplate="step %{customdata[0]}, %{y}: "
                + kind
                + ", %{customdata[1]} tokens<extra></extra>",
                customdata=[[m.step, m.tokens] for m in part],
            )
        )
    figure.add_vrect(
        x0=here - 0.5, x1=here + 0.5, line={"color": style.GREEN, "width": 2.5}, fillcolor="rgba(0,0,0,0)"
    )
    last = max(m.step for m in marks)
    figure.update_xaxes(title_text="step", dtick=1 if last < 40 else None, range=[-0.7, last + 0.7])
    figure.update_yaxes(categoryorder="array", categoryarray=list(order)[::-1], title_text="request")
    height = 130 + 30 * len(order)
    return style.finish(figure, height, barmode="overlay", margin={"l": 56, "r": 12, "t": 48, "b": 48})
