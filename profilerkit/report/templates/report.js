(() => {
  "use strict";
  // A link to a place within a folded section opens it.
  function reveal() {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const box = target && target.closest("details");
    if (!box) return;
    box.open = true;
    target.scrollIntoView();
  }
  addEventListener("hashchange", reveal);
  document.querySelectorAll('nav a').forEach((link) => link.addEventListener("click", () => setTimeout(reveal)));
  reveal();

  // The folded list is the table of contents; once it has left the window, this one stands above.
  const nav = document.querySelector("nav");
  if (nav) new IntersectionObserver(([seen]) => { nav.hidden = seen.isIntersecting; }).observe(document.getElementById("verdict"));

  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch (error) {
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  for (const table of document.querySelectorAll("table.sort")) {
    const body = table.tBodies[0];
    const field = document.createElement("input");
    field.type = "search";
    field.className = "search";
    field.placeholder = `Search ${body.rows.length} rows`;
    field.setAttribute("aria-label", field.placeholder);
    field.addEventListener("input", () => {
      const wanted = field.value.toLowerCase();
      for (const row of body.rows) row.hidden = !`${row.textContent} ${[...row.querySelectorAll("[title]")].map((e) => e.title)}`.toLowerCase().includes(wanted);
    });
    table.parentElement.before(field);
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
        const order = (a, b) => (isNaN(key(a)) || isNaN(key(b)) ? String(key(b)).localeCompare(String(key(a))) : key(b) - key(a));
        body.append(...[...body.rows].sort((a, b) => (down ? order(a, b) : order(b, a))));
      });
    });
  }

  // Base 85 of Python's base64 module, but for the three characters that HTML reads.
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

  let loading;
  // Figures of sections call this: a promise of Plotly, unpacked from the page once.
  window.loadPlotly = () => (loading ??= (async () => {
    const packed = document.getElementById("plotly");
    const stream = new Blob([base85(packed.textContent, Number(packed.dataset.length))]).stream();
    const text = await new Response(stream.pipeThrough(new DecompressionStream("gzip"))).text();
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
    return window.Plotly;
  })());
})();
