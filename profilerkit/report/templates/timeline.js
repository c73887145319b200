// Two steps as rows of events. Plotly draws one heat map: for each row and pixel the event that fills most of it, so
// that the time of a zoom is that of the pixels, not of the events. Names only ever become text nodes.
(async () => {
  "use strict";
  const root = document.getElementById("step-timeline");
  const source = document.getElementById("step-timeline-data");
  const figure = root?.closest("figure"), twin = figure?.nextElementSibling.querySelector("figure");
  if (!root || !source || !window.loadPlotly || !("DecompressionStream" in window)) return;

  const SHADES = 4, ROW_PX = 15, GAP = 0.4, HEAD = 1.6, MOST_LABELS = 40;
  const spec = JSON.parse(source.textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const pale = spec.families.length * SHADES;
  let data, Plotly, plot, range, layoutRows, found = null, current = -1, cells;

  const element = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const time = (ns) => {
    if (!ns) return "0";
    const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([each]) => Math.abs(ns) >= each) ?? [1, "ns"];
    return `${+(ns / size).toPrecision(4)} ${unit}`;
  };
  // Plotly reads a subset of HTML in the labels of an axis.
  const plain = (text) => text.replace(/[&<>]/g, (char) => `&#${char.charCodeAt(0)};`);
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 5)}…${text.slice(-4)}` : text);

  async function unpack() {
    const bytes = Uint8Array.from(atob(spec.packed), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    data = await new Response(stream).json();
    const summed = (values) => { let total = 0; return values.map((value) => (total += value)); };
    for (const step of data.steps) Object.assign(step, { start: summed(step.start), row: summed(step.row) });
  }

  const search = element("input", { type: "search", placeholder: "Search names", autocomplete: "off", spellcheck: false });
  search.setAttribute("aria-label", "Search the names of events");
  const choice = element("select", {});
  choice.setAttribute("aria-label", "Step");
  const button = (text, label, act) => {
    const made = element("button", { type: "button", textContent: text, title: label, onclick: act });
    made.setAttribute("aria-label", label);
    return made;
  };
  const status = element("p", { className: "caption timeline-status" });
  status.setAttribute("role", "status");
  const tip = element("div", { className: "timeline-tip", hidden: true });
  const stage = element("div", { className: "timeline-stage", tabIndex: 0 });
  stage.setAttribute("role", "group");
  stage.setAttribute("aria-label", "Timeline. Left and right move, plus and minus zoom, 0 shows the whole step, n and p go to the next and previous match.");

  const whole = () => [0, Math.max(...shown().map((step) => step.ns))];
  const shown = () => (choice.value === "all" ? data.steps : [data.steps[Number(choice.value)]]);

  // From top to bottom: each row of each step with its edges, empty ones between tracks, and the label of each track.
  function arrange() {
    const rows = [], labels = [], heads = [], edges = [0];
    const add = (height, row) => { rows.push(row); edges.push(edges.at(-1) + height); };
    for (const step of shown()) {
      if (choice.value === "all") { heads.push([edges.at(-1) + HEAD / 2, step.title]); add(HEAD, null); }
      step.at = [];
      for (const [name, , count] of step.tracks) {
        labels.push([edges.at(-1) + count / 2, name]);
        for (let row = 0; row < count; row++) { step.at.push(rows.length); add(1, { step, track: name }); }
        add(GAP, null);
      }
    }
    layoutRows = { rows, labels, heads, edges };
  }

  // The event of each row and pixel between the ends of the range.
  function rasterize() {
    const columns = Math.max(200, Math.min(1600, Math.round(stage.clientWidth - 100)));
    const [from, to] = range, dx = (to - from) / columns, rows = layoutRows.rows;
    const covered = new Float64Array(rows.length * columns), best = new Float64Array(rows.length * columns);
    const index = new Int32Array(rows.length * columns).fill(-1);
    for (const step of shown()) {
      const { start, dur, row, name, at } = step;
      for (let i = 0; i < start.length; i++) {
        const begin = Math.max(start[i], from), end = Math.min(start[i] + dur[i], to);
        if (end < from || begin >= to || end < begin) continue;
        const weight = found && found.has(name[i]) ? 1e6 : 1, base = at[row[i]] * columns;
        const last = Math.min(columns - 1, Math.floor((end - from) / dx));
        for (let c = Math.floor((begin - from) / dx); c <= last; c++) {
          const part = Math.max(Math.min(end, from + (c + 1) * dx) - Math.max(begin, from + c * dx), dx * 1e-6);
          covered[base + c] += part;
          if (part * weight > best[base + c]) { best[base + c] = part * weight; index[base + c] = i; }
        }
      }
    }
    const z = rows.map((row, r) => Array.from({ length: columns }, (_, c) => {
      const i = index[r * columns + c], step = row?.step;
      if (i < 0) return null;
      if (found && !found.has(step.name[i])) return pale;
      const at = r * columns + c, isEdge = index[at - 1] !== i && index[at + 1] === i && index[at + 2] === i;
      const shade = isEdge ? 0 : found ? SHADES - 1 : Math.min(SHADES - 1, Math.floor((SHADES * covered[at]) / dx));
      return step.family[i] * SHADES + shade;
    }));
    cells = { columns, index };
    return { z, x0: from + dx / 2, dx };
  }

  // The names of what is wide enough, the widest first.
  function names(on) {
    const { columns, index } = cells, wide = [];
    layoutRows.rows.forEach((row, r) => {
      const step = row?.step, y = layoutRows.edges[r] + 0.5;
      for (let c = 0, from = 0; row && c <= columns; c++) {
        const [here, begun] = [c < columns ? index[r * columns + c] : -2, index[r * columns + from]];
        if (here === begun) continue;
        if (begun >= 0 && c - from > 60 && (!found || found.has(step.name[begun]))) wide.push([c - from, from, y, step, begun]);
        from = c;
      }
    });
    const width = (range[1] - range[0]) / columns;
    return wide.sort((a, b) => b[0] - a[0]).slice(0, MOST_LABELS).map(([length, from, y, step, i]) => ({
      x: range[0] + from * width, y, xanchor: "left", xshift: 2, showarrow: false, captureevents: false,
      text: plain(cut(data.names[step.name[i]], Math.floor(length / 7))), font: { size: 10, color: on[spec.families[step.family[i]].key] },
    }));
  }

  function mixed(fill, page, share) {
    const part = (hex, k) => parseInt(hex.slice(1 + 2 * k, 3 + 2 * k), 16);
    return `rgb(${[0, 1, 2].map((k) => Math.round(part(fill, k) * share + part(page, k) * (1 - share))).join(",")})`;
  }
  function colours(ink) {
    const each = spec.families.flatMap(({ key }) => [0.4, 0.6, 0.8, 1].map((share) => mixed(ink[key], ink.page, share)));
    each.push(mixed(ink.other, ink.page, 0.25));
    return each.flatMap((colour, n) => [[n / each.length, colour], [(n + 1) / each.length, colour]]);
  }

  function draw() {
    const scheme = dark.matches ? "dark" : "light", ink = spec.schemes[scheme], narrow = stage.clientWidth < 560;
    const { labels, heads, edges } = layoutRows, made = rasterize(), height = edges.at(-1);
    const trace = {
      type: "heatmap", ...made, y: edges, zmin: -0.5, zmax: pale + 0.5, colorscale: colours(ink),
      showscale: false, hoverinfo: "none", hoverongaps: false, ygap: 1,
    };
    const layout = {
      height: Math.round(height * ROW_PX) + 46, margin: { l: narrow ? 84 : 168, r: 8, t: 6, b: 40 }, dragmode: "zoom",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink.muted },
      xaxis: { range, tickvals: ticks(), ticktext: ticks().map(time), gridcolor: ink.rule, zeroline: false, title: { text: "since the start of the step", standoff: 4 } },
      yaxis: { range: [height, 0], fixedrange: true, showgrid: false, zeroline: false, tickvals: labels.map(([y]) => y), tickfont: { size: narrow ? 11 : 12 }, ticks: "", ticktext: labels.map(([, name]) => plain(cut(name, narrow ? 11 : 26))) },
      annotations: [
        ...heads.map(([y, text]) => ({ x: 0, xref: "paper", y, text: plain(text), showarrow: false, xanchor: "left", font: { color: ink.text, size: 13 } })),
        ...names(spec.on[scheme]),
      ],
      shapes: shown().map((step) => ({ type: "line", x0: step.ns, x1: step.ns, yref: "paper", y0: 0, y1: 1, line: { color: ink.text, width: 1, dash: "dot" } })),
    };
    return Plotly.react(plot, [trace], layout, { responsive: true, displayModeBar: false, doubleClick: false });
  }
  function ticks() {
    const [from, to] = range, rough = (to - from) / Math.max(3, Math.round(stage.clientWidth / 160));
    const power = 10 ** Math.floor(Math.log10(rough)), size = [1, 2, 5, 10].find((k) => k * power >= rough) * power;
    const out = [];
    for (let at = Math.ceil(from / size) * size; at <= to; at += size) out.push(at);
    return out;
  }

  function go(from, to) {
    const [low, high] = whole(), width = Math.min(Math.max(to - from, 200), high - low);
    const begin = Math.min(Math.max(from, low), high - width);
    range = [begin, begin + width];
    tip.hidden = true;
    return draw();
  }
  const zoom = (factor) => { const middle = (range[0] + range[1]) / 2, half = ((range[1] - range[0]) * factor) / 2; return go(middle - half, middle + half); };
  const move = (share) => { const by = (range[1] - range[0]) * share; return go(range[0] + by, range[1] + by); };

  function look() {
    const words = search.value.trim().toLowerCase();
    found = words ? new Set(data.names.flatMap((name, n) => (name.toLowerCase().includes(words) ? [n] : []))) : null;
    current = -1;
    const hits = matches();
    status.textContent = found ? `${hits.length.toLocaleString("en")} matching event${hits.length === 1 ? "" : "s"}, ${time(hits.reduce((sum, [step, i]) => sum + step.dur[i], 0))} in all.` : notes();
    return draw();
  }
  const notes = () => ["Drag to zoom, double-click for the whole step."].concat(shown().map((step) => `${step.title}. ${step.note}`.trim())).join(" ");
  const matches = () => (found ? shown().flatMap((step) => step.name.flatMap((n, i) => (found.has(n) ? [[step, i]] : []))) : []);
  const words = (step, i) => `${data.names[step.name[i]]} · ${time(step.dur[i])} · begins at ${time(step.start[i])}`;
  function next(by) {
    const hits = matches();
    if (!hits.length) return;
    current = (current + by + hits.length) % hits.length;
    const [step, i] = hits[current], around = Math.max(step.dur[i] * 4, (whole()[1] - whole()[0]) / 400);
    status.textContent = `${current + 1} of ${hits.length.toLocaleString("en")}: ${words(step, i)}`;
    go(step.start[i] + step.dur[i] / 2 - around, step.start[i] + step.dur[i] / 2 + around);
  }

  function hover({ points: [point], event }) {
    const [r, c] = point.pointNumber, { step, track } = layoutRows.rows[r];
    const i = cells.index[r * cells.columns + c];
    if (i < 0) return;
    tip.replaceChildren(element("strong", { textContent: data.names[step.name[i]] }), element("span", { textContent: `${time(step.dur[i])} · begins at ${time(step.start[i])} · ${track}` }));
    tip.hidden = false;
    const box = stage.getBoundingClientRect(), left = event.clientX - box.left, top = event.clientY - box.top;
    tip.style.left = `${Math.max(0, Math.min(left + 12, box.width - tip.offsetWidth))}px`;
    tip.style.top = `${top + 16}px`;
  }

  async function start() {
    [, Plotly] = await Promise.all([unpack(), window.loadPlotly()]);
    data.steps.forEach((step, n) => choice.append(element("option", { value: String(n), textContent: step.title })));
    if (data.steps.length > 1) choice.append(element("option", { value: "all", textContent: "Both, one above the other" }));
    const used = new Set(data.steps.flatMap((step) => step.family));
    const legend = element("ul", { className: "legend" }, ...spec.families.flatMap(({ key, name }, n) => (used.has(n) ? [element("li", {}, element("span", { className: `swatch ${key}`, ariaHidden: "true" }), name)] : [])));
    const buttons = [["←", "Move left", () => move(-0.5)], ["→", "Move right", () => move(0.5)], ["+", "Zoom in", () => zoom(0.4)], ["−", "Zoom out", () => zoom(2.5)], ["Whole step", "Show the whole step", () => go(...whole())], ["Next match", "Go to the next match", () => next(1)]];
    plot = element("div", {});
    stage.append(plot, tip);
    root.replaceChildren(element("div", { className: "timeline-tools" }, choice, search, ...buttons.map((each) => button(...each))), legend, stage, status);
    root.hidden = false;
    figure.querySelector(".figure-title").textContent = twin?.querySelector(".figure-title").textContent ?? data.steps[0].title;
    twin?.classList.add("print-only");
    arrange();
    range = whole();
    status.textContent = notes();
    await draw();
    plot.on("plotly_hover", hover);
    plot.on("plotly_unhover", () => { tip.hidden = true; });
    plot.on("plotly_relayout", (change) => { if ("xaxis.range[0]" in change) go(change["xaxis.range[0]"], change["xaxis.range[1]"]); });
    plot.on("plotly_doubleclick", () => go(...whole()));
    choice.onchange = () => { arrange(); range = whole(); look(); };
    search.oninput = look;
    search.onkeydown = (event) => { if (event.key === "Enter") next(event.shiftKey ? -1 : 1); };
    const keys = { ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => go(...whole()), Home: () => go(...whole()), n: () => next(1), p: () => next(-1) };
    stage.onkeydown = (event) => { if (!event.ctrlKey && !event.metaKey && keys[event.key]) { event.preventDefault(); keys[event.key](); } };
    stage.onwheel = (event) => { if (event.ctrlKey || event.metaKey) { event.preventDefault(); zoom(event.deltaY > 0 ? 1.3 : 0.77); } };
    dark.addEventListener("change", draw);
    new ResizeObserver(() => { if (cells && Math.abs(cells.columns - (stage.clientWidth - 100)) > 8) draw(); }).observe(stage);
  }
  // Plotly is unpacked when the figure is near, not when the page opens.
  new IntersectionObserver((entries, observer) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    start().catch(() => { root.hidden = true; twin?.classList.remove("print-only"); });
  }, { rootMargin: "400px" }).observe(figure);
})();
