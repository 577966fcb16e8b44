"""What a client sends and receives in a round, beside what its weights would weigh."""

import math

from markupsafe import Markup

from fedbnn.report.figures import show, size
from fedbnn.report.svg import Drawing, Scale
from fedbnn.report.traffic import Traffic

WIDTH, ROW, THICK, HEAD, GAP, LABEL = 440.0, 16.0, 11.0, 20.0, 14.0, 200.0

Bar = tuple[str, float, str]
"""Words, bytes and CSS class."""


def traffic_bars(traffic: list[Traffic]) -> Markup:
    """A block of bars a method; the weights stand once at the end where they are the same for all."""
    blocks: list[tuple[str, list[Bar]]] = [
        (of.method, [("sends", of.up, "up"), ("receives", of.down, "down")]) for of in traffic
    ]
    if len({of.parameters for of in traffic}) == 1:
        blocks.append(("Exchanging weights would need", [("each way", traffic[0].weights, "weights")]))
    else:
        for (_, bars), of in zip(blocks, traffic, strict=True):
            bars.append(("weights:", of.weights, "weights"))
    spoken = [f"{name} {', '.join(f'{verb} {show(v, size)}' for verb, v, _ in bars)}" for name, bars in blocks]
    height = sum(HEAD + len(bars) * ROW + GAP for _, bars in blocks) - GAP + 4
    drawing = Drawing(WIDTH, height, f"Bytes a client and round: {'; '.join(spoken)}.")
    lengths = [value for _, bars in blocks for _, value, _ in bars if math.isfinite(value)]
    x = Scale(0.0, max(lengths, default=0.0) or 1.0, 0.0, WIDTH - LABEL)
    top = 0.0
    for name, bars in blocks:
        drawing.words(0, top + 13, name, "name")
        for row, (verb, value, style) in enumerate(bars):
            y = top + HEAD + row * ROW
            length = max(x(value), 1.5) if math.isfinite(value) and value > 0 else 0.0
            drawing.bar(0, y, length, THICK, style)
            drawing.words(length + 7 if length else 0, y + 10, f"{verb} {show(value, size)}", "tick")
        top += HEAD + len(bars) * ROW + GAP
    return drawing.markup()
