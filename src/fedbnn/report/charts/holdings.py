"""Who holds how many records of which class, and where values are missing."""

from markupsafe import Markup

from fedbnn.data.check import DataCheck
from fedbnn.report.axes import Box, horizontal
from fedbnn.report.svg import Drawing, Scale
from fedbnn.report.ticks import nice_ticks

ROW, LEFT, WIDTH = 28.0, 170.0, 900.0
COLOURS = 7


def holdings(check: DataCheck) -> Markup:
    """One bar a client, divided by class."""
    drawing = Drawing(WIDTH, len(check.clients) * ROW + 50, "Records of each client by class")
    box = Box(LEFT, 4, WIDTH - 20, 4 + len(check.clients) * ROW)
    most = max(one.records for one in check.clients)
    x = horizontal(drawing, box, nice_ticks(0, most, 7, integer=True), "records", grid=True)
    for at, one in enumerate(check.clients):
        top, before = box.top + at * ROW, 0
        drawing.words(LEFT - 8, top + ROW / 2 + 4, _short(one.name), "name", "end")
        for number, (name, count) in enumerate(one.classes.items()):
            if count:
                tip = f"{one.name}: {count} of {name}"
                width = x(before + count) - x(before)
                drawing.bar(x(before), top + 4, width, ROW - 8, f"dot s{number % COLOURS}", tip=tip)
            before += count
    return drawing.markup()


def legend(check: DataCheck) -> Markup:
    """The colours of the classes."""
    names = list(check.clients[0].classes)
    drawing = Drawing(WIDTH, 20 * ((len(names) + 4) // 5) + 4, "Colours of the classes")
    for number, name in enumerate(names):
        x, y = 4 + number % 5 * 175, 4 + number // 5 * 20
        drawing.bar(x, y, 12, 12, f"dot s{number % COLOURS}")
        drawing.words(x + 18, y + 11, _short(name))
    return drawing.markup()


def gaps(check: DataCheck) -> Markup:
    """A square for each client and column, the darker the more values are missing."""
    names = [column.name for column in check.columns]
    drawing = Drawing(WIDTH, len(names) * ROW + 30, "Share of missing values by column and client")
    x = Scale(0, max(len(check.clients), 1), LEFT, WIDTH - 20)
    width = min(x(1) - x(0), 120.0)
    for at, client in enumerate(check.clients):
        left = LEFT + at * width
        if len(check.clients) <= 12:
            drawing.words(left + width / 2, 14, _short(client.name, int(width / 7)), "tick", "middle")
        for line, name in enumerate(names):
            share = client.missing[name] / max(client.records, 1)
            drawing.bar(left + 1, 21 + line * ROW, width - 2, ROW - 2, "weights")
            tip = f"{client.name}, {name}: {client.missing[name]} of {client.records} missing"
            drawing.shape(
                "rect", "wrong", tip, x=left + 1, y=21 + line * ROW, width=width - 2, height=ROW - 2, fill_opacity=share
            )
    for line, name in enumerate(names):
        drawing.words(LEFT - 8, 21 + line * ROW + ROW / 2 + 4, _short(name), "name", "end")
    return drawing.markup()


def _short(name: str, most: int = 22) -> str:
    return name if len(name) <= most else f"{name[: max(most - 1, 1)]}…"
