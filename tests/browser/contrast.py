"""Contrast of each text on a page by WCAG 2 AA, computed in the page from the computed styles.

The ground of a text is what the elements above it paint, up to one that is opaque. Simple: no
images, no gradients, nothing that lies over something else.
"""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page

#: Tells the contrast of two colors over their grounds: 1 to 21. A canvas lays them over each other.
CONTRAST = """
const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
const painted = colors => {
  for (const color of ["white", ...colors]) {
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
  }
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const linear = part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
const luminance = colors => {
  const [red, green, blue] = painted(colors).map(part => linear(part / 255));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
const contrast = (color, grounds) => {
  const both = [luminance(grounds), luminance([...grounds, color])].sort((a, b) => a - b);
  return (both[1] + 0.05) / (both[0] + 0.05);
};
"""

#: Collects each text with its contrast, and the least that it needs: large ones need less.
_COLLECT = """
const found = [];
const note = (text, element, style) => {
  const shown = element.getClientRects().length && style.visibility === "visible";
  if (!text.trim() || !shown || element.closest(".unseen, .skip")) return;
  const grounds = [];
  for (let each = element; each; each = each.parentElement) {
    const { backgroundColor, opacity } = getComputedStyle(each);
    if (opacity !== "1") throw Error("this test cannot judge opacity");
    grounds.unshift(backgroundColor);
  }
  const size = parseFloat(style.fontSize), bold = Number(style.fontWeight) >= 700;
  const least = size >= 24 || (bold && size >= 18.66) ? 3 : 4.5;
  found.push([text.trim().slice(0, 40), contrast(style.color, grounds), least]);
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
"""


def texts(page: Page) -> list[Any]:
    """List every text that can be seen, with its contrast and the least that it needs."""
    found: list[Any] = page.evaluate(f"() => {{ {CONTRAST} {_COLLECT} }}")
    return found
