// The page of ef.show: one head large, with its map or lines and a query in words and numbers, and a thumbnail of every head.
// Only what is looked at is decoded.

const Show = (() => {
  "use strict";

  const { el, button } = Dom;
  const data = JSON.parse(Dom.at("entformer-data").textContent);
  const heads = data.panels.flatMap((panel, layer) => panel.heads.map((head, index) => ({ panel, layer, head, index })));
  const decoded = new Map();
  const cards = [];
  let at = 0;
  let row = 0;
  let view = "map";

  const tokens = Tokens.create({ onQuery: (next) => mark(next) });
  const heatmap = Heatmap.create({ onPick: (next, column) => mark(next, column) });
  const lines = Lines.create({ onQuery: (next) => mark(next) });
  const title = el("h2", { id: "head-title", tabindex: -1 });
  const facts = el("p.flow");
  const figure = el("div.figure");
  const [small, large, largest] = [el("i.swatch"), el("i.swatch"), el("span", "1")];
  const [zero, zeroText] = [el("i.swatch"), el("span")];
  const masked = el("span.future", el("i.swatch"), "masked");
  const legend = el("div.flow.legend", el("span", zero, zeroText), el("span", small, "small"), el("span", large, largest), masked);
  const views = { map: "Map", lines: "Lines" };
  const switches = el(
    "div",
    { class: "choice", role: "group", "aria-label": "How to draw the head" },
    Object.entries(views).map(([name, text]) => button(text, () => draw((view = name)), { "data-view": name })),
  );
  const choice = el(
    "select",
    { id: "head-choice", onchange: (event) => open(Number(event.target.value)) },
    heads.map((one, index) => el("option", { value: index }, titleOf(one))),
  );

  function titleOf({ panel, index }) {
    const isPath = panel.name.includes("."); // the name of a module
    return `${isPath ? panel.name : panel.name[0].toUpperCase() + panel.name.slice(1)}, head ${index}`;
  }

  // The rows of a head as the components read them; null if there are too many heads to store its weights.
  function rowsOf(index) {
    const { panel, head } = heads[index];
    if (!head.weights) return null;
    if (!decoded.has(index)) {
      const letters = atob(head.weights.data);
      const bytes = new Uint8Array(letters.length);
      for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
      const rows = data.tokens[panel.queries].length;
      const columns = data.tokens[panel.keys].length;
      const { size, cut } = head.weights;
      const crow = new Uint32Array(bytes.buffer, 0, rows + 1);
      const weight = new Float32Array(bytes.buffer, 4 * (rows + 1), size);
      const Keys = columns > 65536 ? Uint32Array : Uint16Array;
      const col = new Keys(bytes.buffer, 4 * (rows + 1 + size), size);
      decoded.set(index, { rows, columns, crow, col, weight, causal: panel.causal, cut });
    }
    return decoded.get(index);
  }

  // A query whose support is neither a single key nor all keys shows best what a head does.
  function firstQuery(rows) {
    for (let query = 1; query < rows.rows; query++) {
      const size = rows.crow[query + 1] - rows.crow[query];
      if (size > 1 && size < Data.visible(rows, query)) return query;
    }
    return Math.min(1, rows.rows - 1);
  }

  function open(index) {
    const before = heads[at].panel;
    at = index;
    const rows = rowsOf(at);
    const other = before.queries !== heads[at].panel.queries;
    if (rows && (other || row >= rows.rows)) row = firstQuery(rows);
    choice.value = at;
    cards.forEach((card, own) => card.setAttribute("aria-pressed", own === at));
    draw();
  }

  function draw() {
    const { panel, head } = heads[at];
    const rows = rowsOf(at);
    title.textContent = titleOf(heads[at]);
    facts.replaceChildren(
      head.alpha === null ? "" : Heads.chip(head.alpha),
      ` density ${Numbers.percent(head.density)}: the share of its keys to which a query gives weight, on average`,
    );
    for (const one of switches.children) one.setAttribute("aria-pressed", one.dataset.view === view);
    legend.hidden = view === "lines" || !rows;
    tokens.element.hidden = !rows;
    if (!rows) {
      figure.replaceChildren(el("p.note", "The weights of this head are not stored: there are too many heads in this page."));
      return;
    }
    small.style.background = Colors.weight(0);
    large.style.background = Colors.weight(1);
    largest.textContent = rows.weight.some((weight) => weight > 1) ? "1 or more" : "1";
    zero.classList.toggle("zero", !rows.cut);
    zeroText.textContent = Data.restText(rows);
    masked.hidden = !rows.causal;
    const shown = {
      rows,
      title: titleOf(heads[at]),
      queries: data.tokens[panel.queries],
      keys: data.tokens[panel.keys],
      predicted: null,
      keyTitle: "Keys",
      queryTitle: "Queries",
    };
    const current = view === "map" ? heatmap : lines;
    if (figure.firstChild !== current.element) figure.replaceChildren(current.element);
    tokens.show(shown);
    current.show(shown);
    mark(row);
  }

  function mark(next, column = -1) {
    row = next;
    tokens.mark(row);
    if (view === "map") heatmap.mark(row, column);
    else lines.mark(row);
  }

  function step(by) {
    open((at + by + heads.length) % heads.length);
  }

  function card(index) {
    const { head, layer, index: own } = heads[index];
    const above = el("span.facts", `${layer}.${own}`);
    const below = el(
      "span.facts",
      head.alpha === null ? "" : Heads.chip(head.alpha),
      el("span.density", Numbers.percent(head.density)),
    );
    const rows = rowsOf(index) || { rows: 1, columns: 1, crow: [0, 0], col: [], weight: [], causal: false, cut: 0 };
    const node = Heads.card(rows, () => open(index), above, below);
    node.classList.remove("wide");
    node.setAttribute("aria-label", `${titleOf(heads[index])}: density ${Numbers.percent(head.density)}`);
    node.setAttribute("aria-pressed", index === at);
    return node;
  }

  // Thumbnails follow in slices, so that the large head is there at once.
  function paintGrid() {
    cards.length = 0;
    const layers = data.panels.map((panel) =>
      el("div", { class: "layer", style: { "--heads": panel.heads.length } }, el("span.layer-name", panel.name)),
    );
    Dom.put("grid", el("div.grid", layers));
    const jobs = heads.map(({ layer }, index) => () => {
      cards[index] = card(index);
      layers[layer].append(cards[index]);
    });
    Dom.inSlices("grid", jobs);
  }

  function start() {
    Dom.put(
      "choice",
      el("label.wide", "Head ", choice),
      el(
        "span.steps",
        button("←", () => step(-1), { class: "quiet", "aria-label": "Previous head" }),
        button("→", () => step(1), { class: "quiet", "aria-label": "Next head" }),
      ),
    );
    Dom.put(
      "one-head",
      el(
        "article",
        { class: "inspector", "aria-labelledby": "head-title" },
        el("header", el("div.naming", title, facts)),
        el("div.sides", el("div.side", el("div.flow.bar-above", switches), figure, legend), el("div.side", tokens.element)),
      ),
    );
    const counted = (count, name) => `${count} ${name}${count === 1 ? "" : "s"}`;
    const sizes = `${counted(data.panels.length, "layer")}, ${counted(heads.length, "head")}`;
    Dom.at("made").textContent = `${sizes}. Layers, heads and positions count from 0. ${data.read_as}`;
    Theme.start(Dom.at("theme"), () => {
      paintGrid();
      draw();
    });
    const rows = rowsOf(at);
    if (rows) row = firstQuery(rows);
    open(at);
    requestAnimationFrame(() => requestAnimationFrame(paintGrid));
  }

  start();
  return { open };
})();
