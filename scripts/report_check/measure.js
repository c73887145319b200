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
    if (!node.data.trim() || parent.closest("script,style,svg,.js-plotly-plot,template")) continue;
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

  // The horizontal part of a piece that its scrolling or cutting ancestors let through.
  function window_of(parent) {
    let left = -Infinity;
    let right = Infinity;
    let scrolls = false;
    for (let at = parent; at && at !== document.body; at = at.parentElement) {
      const overflow = getComputedStyle(at).overflowX;
      if (overflow === "visible") continue;
      const box = at.getBoundingClientRect();
      left = Math.max(left, box.left);
      right = Math.min(right, box.right);
      scrolls ||= overflow === "auto" || overflow === "scroll";
    }
    return { left, right, scrolls };
  }

  // Words of prose of the verdict on the first screen. Tables, pictures with their captions, tiles and the changes,
  // which are records with labelled fields like the rows of a table, are read by place and not word by word; numbers
  // and the marks of evidence, which are as good as numbers, are no words.
  const words = [];
  for (const { node, parent } of pieces) {
    if (!parent.closest("#verdict") || parent.closest("table,[role=img],.caption,h2,.tiles,.card,[aria-hidden=true]")) continue;
    for (const match of node.data.matchAll(/\S+/g)) {
      const range = document.createRange();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      const box = range.getBoundingClientRect();
      if (box.top + scrollY < height && /\p{L}/u.test(match[0]) && !/^E\d+$/.test(match[0])) words.push(match[0]);
    }
  }

  // Numbers of sentences that lead nowhere. A table, a figure, a list of facts, of notes or of rules is made of rows of
  // evidence itself; what a rule's page says is not about this run; headings of boxes and lines of what is left out
  // count what stands there. Digits in names are none: ranks, steps, dates, versions, FP32.
  const rows = "a,table,svg,pre,code,header,footer,nav,summary,.facts,.notes,.outcomes,.page,.more,[role=img],[aria-hidden=true]";
  const named = /\branks (?:\d+(?:, | and | to |–))*\d+|\brank \d+(?: of \d+)?(?![.,]?\d|\s(?:%|[nµm]?s\b))|\bsteps? \d+(?:(?: and | to |–)\d+)?(?![.,]?\d|\s(?:%|[nµm]?s\b))|\d{4}-\d\d-\d\d\S*/gi;
  const number = /(?<=^|\s|\s\()[+−-]?\d+(?:,\d{3})*(?:\.\d+)?(?=$|[\s–,;:)×%]|\.(?:\s|$))/;
  const bare = pieces.flatMap(({ node, parent }) => {
    const is_row = parent.closest(rows) || (parent.closest("figure") && !parent.closest(".figure-title"));
    return !is_row && number.test(node.data.replace(named, "")) ? [short(node.data)] : [];
  });

  const clipped = [];
  for (const { node, parent, boxes } of pieces) {
    const { left, right, scrolls } = window_of(parent);
    if (scrolls) continue;
    if (boxes.some((box) => box.right > Math.min(right, width) + 1 || box.left < Math.max(left, 0) - 1))
      clipped.push(`"${short(node.data)}" in ${name(parent)}`);
  }

  // Two texts overlap where their boxes share more than two fifths of the lower one's height and two pixels of width.
  const lines = pieces.flatMap(({ node, parent, boxes }) => {
    const { left, right } = window_of(parent);
    return boxes
      .map((box) => ({ node, left: Math.max(box.left, left), right: Math.min(box.right, right), top: box.top, bottom: box.bottom }))
      .filter((box) => box.right > box.left);
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
  const figure = document.querySelector('script[type="text/plain"]');
  return {
    title: document.title,
    lang: document.documentElement.lang,
    headings: all("h1").length,
    landmarks: ["header", "main", "nav", "footer"].filter((tag) => document.querySelector(tag)),
    is_report: ids.has("verdict"),
    is_diff: ids.has("verdict") && !document.querySelector("nav"),
    repeated: all("[id]").length - ids.size,
    dead: all("a[href^='#']").map((a) => decodeURIComponent(a.getAttribute("href").slice(1))).filter((id) => !ids.has(id)),
    drawn: !figure || Boolean(document.querySelector(".main-svg")),
    handlers: all("*").filter((node) => node.getAttributeNames().some((key) => key.startsWith("on"))).map(name),
    foreign: all("iframe,object,embed,form,base,link,audio,video,img,input,meta[http-equiv=refresh]").map(name),
    folded: all("details").filter((box) => ![...box.children].some((node) => node.tagName !== "SUMMARY" && node.checkVisibility())).map(name),
    strange: pieces.filter(({ node }) => /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/.test(node.data)).map(({ parent }) => name(parent)),
    dashes: all("td,dd,th").filter((cell) => /^([-–—]|None|nan|NaN|null|undefined)$/.test(clean(cell.textContent))).map(name),
    empty: all("section,figure,table,dl,ul").filter((node) => node.checkVisibility() && !clean(node.textContent) && !node.querySelector("svg")).map(name),
    words,
    bare: ids.has("verdict") ? bare : [],
    clipped,
    overlaps,
    page_width: document.scrollingElement.scrollWidth,
    width,
    background: getComputedStyle(document.documentElement).backgroundColor,
    body_background: getComputedStyle(document.body).backgroundColor,
  };
})()
