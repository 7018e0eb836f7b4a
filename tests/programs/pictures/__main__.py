"""Runs the demo and draws its live picture as an animated SVG: `python -m tests.programs.pictures [FILE]`.

The demo runs for half a minute. One frame is drawn every few seconds.
"""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.terminal_theme import MONOKAI

import processor.trial.demo.run as demo
from processor.trial.demo import DemoOptions, run_demo
from processor.trial.demo.live_view import LiveView, screen

FILE: Final = Path(__file__).parents[3] / "processor" / "docs" / "pictures" / "demo.svg"
SECONDS: Final = 30.0
FRAME_INTERVAL_S: Final = 2.5
FRAMES_MAX: Final = 10
SHOWN_S: Final = 1.5
"""Time for which the animation shows each frame."""
FORMAT: Final = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px; line-height: {line_height}px }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class RecordingView(LiveView):
    """The demo's view, which keeps a frame every few seconds."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._last_s = 0.0

    def show(self, moment: Any, picture: Any, table: Any = None) -> None:
        """Show the picture, and keep it as a frame when one is due."""
        super().show(moment, picture, table)
        if moment.phase.endswith(f"of {SECONDS:g}") and time.monotonic() - self._last_s >= FRAME_INTERVAL_S:
            self._last_s = time.monotonic()
            FRAMES.append(draw(screen(moment, picture), len(FRAMES)))


FRAMES: Final[list[str]] = []


def draw(renderable: Any, number: int) -> str:
    """One frame as an SVG of its own."""
    console = Console(record=True, width=82, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(renderable)
    return console.export_svg(title="make demo", theme=MONOKAI, code_format=FORMAT, unique_id=f"f{number}")


def animate(frames: list[str]) -> str:
    """One SVG that shows the frames in turn, for ever; a reader without animations sees the last one."""
    total_s = SHOWN_S * len(frames)
    share = 100 / len(frames)
    box = re.search(r'viewBox="([^"]+)"', frames[0])
    assert box is not None
    parts = [f'<svg viewBox="{box[1]}" xmlns="http://www.w3.org/2000/svg">\n<style>']
    parts.append(f"@keyframes turn {{ 0%, {share:.3f}% {{ opacity: 1 }} {share + 0.001:.3f}%, 100% {{ opacity: 0 }} }}")
    parts += [
        f".turn{number} {{ animation: turn {total_s:g}s {number * SHOWN_S - total_s:g}s step-end infinite }}"
        for number in range(len(frames))
    ]
    parts.append("</style>")
    parts += [f'<g class="turn{number}">\n{frame}</g>' for number, frame in enumerate(frames)]
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    """Record a run of the demo, and write the picture if the run passed its own check."""
    demo.LiveView = RecordingView  # type: ignore[misc]
    code = run_demo(DemoOptions(seconds=SECONDS))
    if code == 0:
        file = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(animate(FRAMES[-FRAMES_MAX:]), encoding="utf-8")
        print(f"{len(FRAMES[-FRAMES_MAX:])} frames in {file}")
    return code


if __name__ == "__main__":
    sys.exit(main())
