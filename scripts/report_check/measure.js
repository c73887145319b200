// What the open page shows, as plain data; the numbers are CSS pixels. Python decides what is wrong.
(() => {
  const width = innerWidth;
  const height = innerHeight;
  const all = (selector) => [...document.querySelectorAll(selector)];
  const name = (node) => {
    const home = node.closest("[id]");
    return `${node.tagName.toLowerCase()}${node.classList.length ? "." + [...node.classList].join(".") : ""}${home ? ` in #${home.id}` : ""}`;
  };
  const clean = (text) => text.replace(/\s+/g, " ").trim();
  const short = (text) => clean(text).slice(0, 60);

  // Every visible piece of text outside pictures, with its boxes.
  const pieces = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest(".tall thead,script,style,svg,.js-plotly-plot,template")) continue;
    if (!parent.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    const style = getComputedStyle(parent);
    // Headings that are there for screen readers alone are one pixel wide.
    const reader = parent.closest("thead") && getComputedStyle(parent.closest("thead")).position === "absolute";
    if (reader || parseFloat(style.fontSize) === 0) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const boxes = [...range.getClientRects()].filter((box) => box.width > 0.5 && box.height > 0.5);
    if (boxes.length) pieces.push({ node, parent, boxes, style });
  }

  // The part of a piece that its scrolling or cutting ancestors let through.
  function window_of(parent) {
    let left = -Infinity;
    let right = Infinity;
    let top = -Infinity;
    let bottom = Infinity;
    let scrolls = false;
    for (let at = parent; at && at !== document.body; at = at.parentElement) {
      const overflow = getComputedStyle(at).overflowX;
      if (overflow === "visible") continue;
      const box = at.getBoundingClientRect();
      left = Math.max(left, box.left);
      right = Math.min(right, box.right);
      top = Math.max(top, box.top);
      bottom = Math.min(bottom, box.bottom);
      scrolls ||= overflow === "auto" || overflow === "scroll";
    }
    return { left, right, top, bottom, scrolls };
  }

  // What stands above the fold, token by token; the words of the whole page as it is folded now.
  const tokens = [];
  let words = 0;
  for (const { node, parent } of pieces) {
    if (parent.closest("nav")) continue;
    for (const match of node.data.matchAll(/\S+/g)) {
      const range = document.createRange();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      if (/\p{L}/u.test(match[0])) words += 1;
      if (/[\p{L}\p{N}]/u.test(match[0]) && range.getBoundingClientRect().top + scrollY < height) tokens.push(match[0]);
    }
  }
  const code = document.querySelector(".pk-first .code");

  const clipped = [];
  for (const { node, parent, boxes } of pieces) {
    const { left, right, scrolls } = window_of(parent);
    if (scrolls) continue;
    if (boxes.some((box) => box.right > Math.min(right, width) + 1 || box.left < Math.max(left, 0) - 1))
      clipped.push(`"${short(node.data)}" in ${name(parent)}`);
  }

  // Two texts overlap where their boxes share more than two fifths of the lower one's height and two pixels of width.
  const lines = pieces.flatMap(({ node, parent, boxes }) => {
    const { left, right, top, bottom } = window_of(parent);
    return boxes
      .map((box) => ({ node, left: Math.max(box.left, left), right: Math.min(box.right, right), top: Math.max(box.top, top), bottom: Math.min(box.bottom, bottom) }))
      .filter((box) => box.right > box.left && box.bottom > box.top);
  }).sort((one, other) => one.top - other.top);
  const overlaps = [];
  for (let i = 0; i < lines.length; i++) {
    for (let k = i + 1; k < lines.length && lines[k].top < lines[i].bottom; k++) {
      const [one, other] = [lines[i], lines[k]];
      if (one.node === other.node) continue;
      const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const high = Math.min(one.bottom, other.bottom) - other.top;
      if (wide > 2 && high > 0.4 * Math.min(one.bottom - one.top, other.bottom - other.top))
        overlaps.push(`"${short(one.node.data)}" and "${short(other.node.data)}"`);
    }
  }

  const ids = new Set(all("[id]").map((node) => node.id));
  return {
    title: document.title,
    lang: document.documentElement.lang,
    headings: all("h1").length,
    landmarks: ["main", "nav", "footer"].filter((tag) => document.querySelector(tag)),
    is_report: ids.has("verdict"),
    is_diff: ids.has("differences") || (ids.has("numbers") && !ids.has("trust")),
    repeated: all("[id]").length - ids.size,
    dead: all("a[href^='#']").map((a) => decodeURIComponent(a.getAttribute("href").slice(1))).filter((id) => !ids.has(id)),
    handlers: all("*").filter((node) => node.getAttributeNames().some((key) => key.startsWith("on"))).map(name),
    foreign: all("iframe,object,embed,form,base,link,audio,video,img,meta[http-equiv=refresh]").map(name),
    folded: all("details.prints").filter((box) => ![...box.children].some((node) => node.tagName !== "SUMMARY" && node.checkVisibility())).map(name),
    strange: pieces.filter(({ node }) => /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/.test(node.data)).map(({ parent }) => name(parent)),
    dashes: all("td,dd,th").filter((cell) => /^([-–—]|None|nan|NaN|null|undefined)$/.test(clean(cell.textContent))).map(name),
    empty: all("section,figure,table,dl,ul").filter((node) => node.checkVisibility() && !clean(node.textContent) && !node.querySelector("svg,.plot")).map(name),
    tokens,
    words,
    screens: document.scrollingElement.scrollHeight / height,
    first_code: code ? code.getBoundingClientRect().bottom + scrollY : 0,
    clipped,
    overlaps,
    height,
    page_width: document.scrollingElement.scrollWidth,
    width,
    background: getComputedStyle(document.documentElement).backgroundColor,
    body_background: getComputedStyle(document.body).backgroundColor,
  };
})()
