#!/usr/bin/python3
"""drawing.py FILE: prints the SVG of boxes and arrows that FILE describes. A line "a: words | b: words" is a row of boxes, the
first line the top row; "a > b" is an arrow from a to b, in a row below. A line "# suffix S" puts S behind each name."""
import pathlib
import sys
import textwrap
from html import escape

WIDTH, MARGIN, GAP, BETWEEN_ROWS = 880, 20, 24, 44
NAME_HEIGHT, LINE_HEIGHT, CHARACTER = 28, 17, 6.6
STYLE = """<style>
.paper { fill: white } .box { fill: #f4f6f8; stroke: #4a5568 } .line { stroke: #4a5568 } .head { fill: #4a5568 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .paper { fill: #0d1117 } .box { fill: #1c2430; stroke: #8b98a9 } .line { stroke: #8b98a9 } .head { fill: #8b98a9 }
}
</style>"""


class Box:
    """One box; its place is known when the places of its row are."""

    def __init__(self, text, suffix):
        self.name, _, self.words = (part.strip() for part in text.partition(":"))
        self.title = self.name + suffix

    def place(self, left, top, width):
        """Wraps the words, which gives the height."""
        self.left, self.top, self.width = left, top, width
        self.lines = textwrap.wrap(self.words, int((width - 16) / CHARACTER))
        self.height = NAME_HEIGHT + LINE_HEIGHT * len(self.lines) + 8

    def svg(self):
        """A rectangle, the name and the words."""
        middle = self.left + self.width / 2
        yield (f'<rect x="{self.left:g}" y="{self.top:g}" width="{self.width:g}" height="{self.height:g}" rx="6" '
               'class="box"/>')
        yield f'<text x="{middle:g}" y="{self.top + 20:g}" font-weight="bold">{escape(self.title)}</text>'
        for number, line in enumerate(self.lines):
            yield f'<text x="{middle:g}" y="{self.top + NAME_HEIGHT + 11 + LINE_HEIGHT * number:g}" font-size="12">{escape(line)}</text>'


def read(text):
    """The rows of boxes, and the arrows as pairs of names."""
    lines = [line.strip() for line in text.splitlines()]
    suffix = "".join(line.removeprefix("# suffix ") for line in lines if line.startswith("# suffix "))
    lines = [line for line in lines if line and not line.startswith("#")]
    rows = [[Box(part, suffix) for part in line.split("|")] for line in lines if ">" not in line]
    return rows, [tuple(part.strip() for part in line.split(">")) for line in lines if ">" in line]


def lay_out(rows):
    """Places every box; returns the total height."""
    top = MARGIN
    for row in rows:
        width = (WIDTH - 2 * MARGIN - GAP * (len(row) - 1)) / len(row)
        for number, box in enumerate(row):
            box.place(MARGIN + number * (width + GAP), top, width)
        tallest = max(box.height for box in row)
        for box in row:
            box.height = tallest
        top += tallest + BETWEEN_ROWS
    return top - BETWEEN_ROWS + MARGIN


def arrow(start, end, ends):
    """A line from the lower edge of `start` to the upper edge of `end`. Each arrow at an edge has its own place
    there."""
    place, count = ends
    x = end.left + end.width * (place + 1) / (count + 1)
    return (f'<line x1="{min(max(x, start.left + 20), start.left + start.width - 20):g}" y1="{start.top + start.height:g}" '
            f'x2="{x:g}" y2="{end.top - 2:g}" class="line" marker-end="url(#head)"/>')


def main():
    """Draws one file."""
    rows, arrows = read(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    height = lay_out(rows)
    boxes = {box.name: box for row in rows for box in row}
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" font-family="sans-serif" font-size="14" '
          'text-anchor="middle">')
    print(STYLE)
    print(f'<rect width="{WIDTH}" height="{height:g}" class="paper"/>')
    print('<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
          '<path d="M0 0L8 4L0 8z" class="head"/></marker>')
    for start, end in arrows:
        into = sorted((other for other, target in arrows if target == end), key=lambda name: boxes[name].left)
        print(arrow(boxes[start], boxes[end], (into.index(start), len(into))))
    for box in boxes.values():
        print("\n".join(box.svg()))
    print("</svg>")


if __name__ == "__main__":
    main()
