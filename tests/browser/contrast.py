"""Contrast of each text on a page by WCAG 2 AA, computed from the computed styles.

The ground of a text is what the elements above it paint, up to one that is opaque. Simple: no
images, no gradients, nothing that lies over something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Page

#: The least contrast of a text, and of a large one.
LEAST, LEAST_LARGE = 4.5, 3.0

#: Pixels from which a text is large, and from which a bold one is.
LARGE, LARGE_BOLD = 24.0, 18.66

#: Collects each text with its color, its size, and the backgrounds from inside out.
_COLLECT = """() => {
  const found = [];
  const note = (text, element, style) => {
    const shown = element.getClientRects().length && style.visibility === "visible";
    const hidden = element.closest(".unseen, .skip");
    if (!text.trim() || !shown || hidden) return;
    const grounds = [], opacities = [];
    for (let each = element; each; each = each.parentElement) {
      grounds.push(getComputedStyle(each).backgroundColor);
      opacities.push(getComputedStyle(each).opacity);
    }
    const image = getComputedStyle(element).backgroundImage;
    found.push({text: text.trim().slice(0, 40), color: style.color, grounds, opacities, image,
                size: parseFloat(style.fontSize), weight: Number(style.fontWeight)});
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    note(walker.currentNode.data, element, getComputedStyle(element));
  }
  for (const element of document.querySelectorAll("body *")) {
    for (const pseudo of ["::before", "::after"]) {
      const style = getComputedStyle(element, pseudo);
      if (!["none", "normal"].includes(style.content)) note(style.content, element, style);
    }
    if (element.matches("input:not([type=hidden])")) {
      note(element.value, element, getComputedStyle(element));
      note(element.placeholder, element, getComputedStyle(element, "::placeholder"));
    }
  }
  return found;
}"""

Color = tuple[float, float, float, float]


@dataclass(frozen=True)
class Text:
    """A text on the page, and its contrast."""

    text: str
    contrast: float
    least: float

    def __str__(self) -> str:
        return f"{self.text!r}: {self.contrast:.2f} of {self.least}"


def texts(page: Page) -> Iterator[Text]:
    """Yield every text that can be seen."""
    for found in page.evaluate(_COLLECT):
        yield _text(found)


def faint_texts(page: Page) -> list[str]:
    """List the texts that are too faint."""
    return [str(text) for text in texts(page) if text.contrast < text.least]


def _text(found: dict[str, Any]) -> Text:
    if found["image"] != "none" or set(found["opacities"]) != {"1"}:
        raise AssertionError(f"this test cannot judge images and opacity: {found}")
    ground = _ground(found["grounds"])
    size, bold = found["size"], found["weight"] >= 700
    large = size >= LARGE or (bold and size >= LARGE_BOLD)
    contrast = ratio(_over(parse(found["color"]), ground), ground)
    return Text(found["text"], contrast, LEAST_LARGE if large else LEAST)


def _ground(colors: list[str]) -> Color:
    """Lay backgrounds over each other, the last one first, upon the browser's own white."""
    ground: Color = (255, 255, 255, 1)
    for color in reversed(colors):
        ground = _over(parse(color), ground)
    return ground


def _over(top: Color, ground: Color) -> Color:
    alpha = top[3]
    red, green, blue = (
        alpha * above + (1 - alpha) * below
        for above, below in zip(top[:3], ground[:3], strict=True)
    )
    return red, green, blue, 1.0


def parse(color: str) -> Color:
    """Read rgb() or rgba()."""
    if not re.fullmatch(r"rgba?\([\d., ]+\)", color):
        raise ValueError(f"no color that this test knows: {color}")
    red, green, blue, *alpha = map(float, re.findall(r"[\d.]+", color))
    return red, green, blue, (alpha or [1.0])[0]


def ratio(one: Color, other: Color) -> float:
    """Return the contrast ratio of two opaque colors: 1 to 21."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: Color) -> float:
    red, green, blue = (_linear(part / 255) for part in color[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
