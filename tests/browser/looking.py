"""Opens a page in the browser, and looks for what a reader would stumble over; a look gives its findings in words."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from playwright.async_api import Browser, Page

Scheme = Literal["light", "dark"]
WIDE, PHONE = 1280, 390
LEAST_LETTER_PX: Final = 9.0


@dataclass
class Opened:
    """A page, with what the browser said of it and all that it asked for."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked_for: list[str] = field(default_factory=list)

    async def look(self, script: str) -> list[str]:
        """Run one of the looks below."""
        found: list[str] = await self.page.evaluate(f"() => {{ {_SHARED} {script} }}")
        return found

    async def open_details(self) -> None:
        """All that can be folded is open."""
        await self.page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")


class Opener:
    """Opens files in a browser, each with settings and a memory of its own."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    @asynccontextmanager
    async def __call__(
        self, path: Path, *, width: int = WIDE, height: int = 900, anchor: str = ""
    ) -> AsyncIterator[Opened]:
        """``path`` in a window of this size, loaded."""
        context = await self._browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="light", reduced_motion="reduce"
        )
        try:
            page = await context.new_page()
            opened = Opened(page)
            page.on("console", lambda message: opened.said.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: opened.said.append(str(error)))
            page.on("request", lambda request: opened.asked_for.append(request.url))
            await page.goto(path.as_uri() + anchor, wait_until="load")
            yield opened
        finally:
            await context.close()


_SHARED: Final = """
    const found = []
    const drawn = svg => [...svg.querySelectorAll('path,line,rect,circle,ellipse,polyline,polygon,text')]
        .filter(each => !each.closest('defs,clipPath,mask,symbol'))
    const named = each => `${each.tagName} ${each.className.baseVal ?? ''} '${each.textContent.trim().slice(0, 40)}'`
    const lettered = text => /[\\p{L}\\p{N}]/u.test(text)
    const texts = () => {
        const walker = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT), nodes = []
        while (walker.nextNode()) {
            const node = walker.currentNode
            if (lettered(node.data) && node.parentElement.checkVisibility()
                && !node.parentElement.closest('style,title,head')) nodes.push(node)
        }
        return nodes
    }
    const inside = (svg, each) => {  // its box in the units of the picture's view box
        const box = each.getBBox(), to = svg.getScreenCTM().inverse().multiply(each.getScreenCTM())
        const corners = [[0, 0], [1, 0], [0, 1], [1, 1]].map(([right, down]) =>
            new DOMPoint(box.x + right * box.width, box.y + down * box.height).matrixTransform(to))
        const xs = corners.map(each => each.x), ys = corners.map(each => each.y)
        return {left: Math.min(...xs), right: Math.max(...xs), top: Math.min(...ys), bottom: Math.max(...ys)}
    }
"""

NOT_FINITE: Final = """
    for (const svg of document.querySelectorAll('svg')) for (const each of drawn(svg)) for (const {name, value} of each.attributes)
        if (/^(x|y|x1|x2|y1|y2|cx|cy|r|rx|ry|width|height|d|points|transform)$/.test(name) && /nan|inf|none|null|undefined/i.test(value))
            found.push(`${named(each)} has ${name}=${value.slice(0, 40)}`)
    return found
"""  # noqa: E501 - a script
"""Geometry that is not numbers."""

OUTSIDE_OF_PICTURE: Final = """
    for (const svg of document.querySelectorAll('svg')) {
        const view = svg.viewBox.baseVal
        if (!(view.width > 0 && view.height > 0)) { found.push('a picture without a view box'); continue }
        const elements = drawn(svg)
        if (elements.length < 10) found.push('an empty picture')
        for (const each of elements) {
            const {left, right, top, bottom} = inside(svg, each)
            if (!(left >= view.x - 0.6 && top >= view.y - 0.6
                  && right <= view.x + view.width + 0.6 && bottom <= view.y + view.height + 0.6))
                found.push(`${named(each)} reaches from ${left},${top} to ${right},${bottom} of ${view.width} x ${view.height}`)
        }
    }
    return found
"""  # noqa: E501
"""What a picture draws outside of itself, and so nobody sees."""

SIDEWAYS: Final = """
    const width = document.documentElement.clientWidth
    if (document.scrollingElement.scrollWidth > width) found.push(`the page is ${document.scrollingElement.scrollWidth} wide of ${width}`)
    const scrolls = each => /auto|scroll/.test(getComputedStyle(each).overflowX)
    for (const each of document.body.querySelectorAll('*')) {
        if (each.closest('svg') && each.tagName !== 'svg') continue
        let held = each
        while (held && !scrolls(held)) held = held.parentElement
        if (held) continue
        const {left, right} = each.getBoundingClientRect()
        if (left < -0.6 || right > width + 0.6) found.push(`${named(each)} reaches from ${left} to ${right} of ${width}`)
        if (each.scrollWidth > each.clientWidth + 1 && each.clientWidth) found.push(`${named(each)} overflows`)
    }
    return found
"""  # noqa: E501
"""What lies beside the page or its element, but for what is made to scroll."""

SMALL_LETTERS: Final = """
    for (const node of texts()) {
        const element = node.parentElement, matrix = element.getScreenCTM?.()
        const size = parseFloat(getComputedStyle(element).fontSize) * (matrix ? Math.hypot(matrix.a, matrix.b) : 1)
        if (!(size >= LEAST)) found.push(`'${node.data.trim().slice(0, 40)}' is ${size.toFixed(1)} px high`)
    }
    return found
""".replace("LEAST", f"{LEAST_LETTER_PX}")

UPON_EACH_OTHER: Final = """
    for (const svg of document.querySelectorAll('svg')) {
        const boxes = [...svg.querySelectorAll('text')].filter(each => lettered(each.textContent)).map(each => {
            const box = inside(svg, each), spare = 0.2 * (box.bottom - box.top)  // above and below the letters
            return {each, ...box, top: box.top + spare, bottom: box.bottom - spare}
        })
        boxes.forEach((a, index) => boxes.slice(index + 1).forEach(b => {
            if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0.1
                && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 0.1)
                found.push(`${named(a.each)} and ${named(b.each)}`)
        }))
    }
    return found
"""
"""Texts of a picture that cover each other."""

FAINT: Final = """
    const numbers = colour => { const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number); return {rgb: [r, g, b], a} }
    const luminance = rgb => rgb.map(each => each / 255)
        .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
        .reduce((sum, each, index) => sum + each * [0.2126, 0.7152, 0.0722][index], 0)
    const over = (front, back) => front.rgb.map((each, index) => each * front.a + back[index] * (1 - front.a))
    const behind = (element, x, y) => {
        const layers = document.elementsFromPoint(x, y).filter(each => !['text', 'tspan'].includes(each.tagName))
        let back = getComputedStyle(document.documentElement).colorScheme.includes('dark')
            && matchMedia('(prefers-color-scheme:dark)').matches ? [18, 18, 18] : [255, 255, 255]
        for (const each of layers.reverse()) {
            const style = getComputedStyle(each), svg = each instanceof SVGElement && each.tagName !== 'svg'
            const paint = svg ? style.fill : style.backgroundColor
            if (paint !== 'none') {
                const front = numbers(paint)
                back = over({...front, a: front.a * (svg ? style.fillOpacity * style.opacity : 1)}, back)
            }
        }
        return back
    }
    for (const node of texts()) {
        const element = node.parentElement, style = getComputedStyle(element), range = document.createRange()
        range.selectNodeContents(node)
        const {left, top, width, height} = range.getBoundingClientRect()
        if (!(width && height)) continue
        const svg = element instanceof SVGElement
        const back = behind(element, left + width / 2, top + height / 2)
        const front = over({...numbers(svg ? style.fill : style.color), a: Number(style.opacity)}, back)
        const [low, high] = [luminance(front), luminance(back)].sort((a, b) => a - b)
        const contrast = (high + 0.05) / (low + 0.05), px = parseFloat(style.fontSize)
        const least = px >= 24 || (px >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5
        if (!(contrast >= least)) found.push(`'${node.data.trim().slice(0, 40)}' ${contrast.toFixed(2)}:1 ${front} on ${back}`)
    }
    return found
"""  # noqa: E501
"""Text with less contrast than WCAG 2.2 asks for (1.4.3, AA). The window must be as high as the page."""

NOT_POINTED_AT: Final = """
    const spread = (from, size, many) => Array.from({length: many}, (_, index) => from + size * (index + 0.5) / many)
    for (const path of document.querySelectorAll('svg path')) {
        const box = path.getBoundingClientRect(), length = path.getTotalLength(), matrix = path.getScreenCTM()
        const hit = (x, y) => document.elementFromPoint(x, y) === path
        const reached = getComputedStyle(path).fill === 'none'
            ? spread(0, length, 400).some(at => {
                const {x, y} = path.getPointAtLength(at).matrixTransform(matrix)
                return hit(x, y)
            })
            : spread(box.left, box.width, 200).some(x => spread(box.top, box.height, 30).some(y => hit(x, y)))
        if (!reached) found.push(path.querySelector('title')?.textContent ?? '')
    }
    return found
"""
"""Names of the curves that no pointer reaches. The window must be as high as the page."""

NAMES_OF_CURVES: Final = (
    "return [...document.querySelectorAll('svg path')].map(each => each.querySelector('title')?.textContent ?? '')"
)
