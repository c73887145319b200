(() => {
  "use strict";
  // On paper every section is open.
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((box) => { box.open = true; }));

  const packed = document.getElementById("figure-script");
  const data = document.getElementById("figure-data");
  const plot = document.getElementById("plot");
  if (!packed || !data || !plot || !("DecompressionStream" in window)) return;

  const spec = JSON.parse(data.textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const count = spec.count;
  const xs = [];
  for (let i = 0, x = spec.first; i < count; i++) {
    if (i) x += spec.skips[i] ?? 1;
    xs.push(x);
  }
  let last = 0;
  const note = xs.map((_, i) => (last = spec.note[i] ?? last));
  // A handful of steps keeps the column width of a dozen.
  const few = 12;
  const pale = new Set(spec.pale);
  for (const layer of spec.layers) layer.y = layer.y.map((count) => count / 10 ** layer.digits);
  const total = xs.map((_, i) => spec.layers.reduce((sum, layer) => sum + layer.y[i], 0));

  function base85(text, length) {
    const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%:()*+-;,=.?@^_`{|}~";
    const value = new Uint8Array(128);
    for (let i = 0; i < 85; i++) value[digits.charCodeAt(i)] = i;
    const bytes = new DataView(new ArrayBuffer((text.length / 5) * 4));
    for (let i = 0, at = 0; i < text.length; i += 5, at += 4) {
      let word = 0;
      for (let k = 0; k < 5; k++) word = word * 85 + value[text.charCodeAt(i + k)];
      bytes.setUint32(at, word);
    }
    return new Uint8Array(bytes.buffer, 0, length);
  }

  async function unpack() {
    const stream = new Blob([base85(packed.textContent.trim(), Number(packed.dataset.length))]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  function traces(ink) {
    const bars = spec.layers.map((layer) => ({
      type: "bar", name: layer.name, x: xs, y: layer.y,
      marker: { color: ink[layer.key], opacity: xs.map((_, i) => (pale.has(i) ? 0.45 : 1)), line: { width: 0 } },
      hovertemplate: `%{y:.3~r} ${spec.unit}<extra>${layer.name}</extra>`,
    }));
    const totals = {
      type: "scatter", mode: "markers", name: "Step", x: xs, cliponaxis: false,
      y: total.map((value) => Math.min(value, spec.cut)),
      customdata: total.map((value, i) => [value.toPrecision(4) + " " + spec.unit, spec.notes[note[i]]]),
      marker: { opacity: 0 },
      hovertemplate: "%{customdata[0]} · %{customdata[1]}<extra>Step</extra>",
    };
    return [...bars, totals];
  }

  // A bar above the plot for each column that is higher than the scale.
  function caps(ink) {
    return spec.marks.map((i) => ({ type: "rect", x0: xs[i] - 0.4, x1: xs[i] + 0.4, yref: "paper", y0: 1.015, y1: 1.035, fillcolor: ink.text, line: { width: 0 } }));
  }

  function layout(ink) {
    const axis = { gridcolor: ink.rule, linecolor: ink.rule, zerolinecolor: ink.rule, ticks: "", title: { standoff: 8 } };
    return {
      barmode: "stack", bargap: count > 300 ? 0 : 0.18, showlegend: false, hovermode: "x unified", dragmode: "zoom",
      margin: { l: 58, r: 8, t: 14, b: 40 }, height: 270, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink.muted },
      hoverlabel: { bgcolor: ink.raised, bordercolor: ink.rule, font: { color: ink.text } },
      xaxis: { ...axis, title: { text: "step", standoff: 6 }, tickformat: ",d", showgrid: false, zeroline: false, range: [xs[0] - 0.6, Math.max(xs[count - 1], xs[0] + few - 1) + 0.6], ...(count <= few ? { tickvals: xs } : {}), spikecolor: ink.muted, spikethickness: -1, spikedash: "solid", unifiedhovertitle: { text: "step %{x}" } },
      yaxis: { ...axis, title: { text: `${spec.unit} per step`, standoff: 8 }, range: [0, spec.top], nticks: 6 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: ink.muted, activecolor: ink.text },
      shapes: [...caps(ink), { type: "line", xref: "paper", x0: 0, x1: 1, y0: spec.median, y1: spec.median, line: { color: ink.text, width: 1.25, dash: "dash" } }],
    };
  }

  function draw() {
    const ink = spec.schemes[dark.matches ? "dark" : "light"];
    const config = { responsive: true, displaylogo: false, modeBarButtons: [["zoom2d", "pan2d", "resetScale2d"]] };
    plot.hidden = false;
    return window.Plotly.react(plot, traces(ink), layout(ink), config);
  }

  async function start() {
    try {
      await unpack();
      await draw();
      document.getElementById("strip").style.display = "none";
      dark.addEventListener("change", draw);
    } catch (error) {
      plot.hidden = true;
    }
  }
  start();
})();
