// The grid of all heads of one run on one sentence: a panel per attention type, a row per layer. Each head is a button with a
// thumbnail, its alpha as a colored chip, and its density.

const Heads = (() => {
  "use strict";

  const { el } = Dom;
  const FINEST = 96; // pixels of a thumbnail on a side; of longer sentences each pixel shows the largest weight in its block

  function chip(alpha, changed = false, name = "α ") {
    if (alpha === null) return el("span", { class: "alpha none", title: "no alpha" }, `${name}–`);
    const rgb = Colors.alphaRgb(alpha);
    const short = Numbers.shortAlpha(alpha);
    return el(
      "span",
      { class: "alpha", title: alpha > 2 ? "beyond sparsemax" : Numbers.alpha(alpha), style: { background: `rgb(${rgb.join(",")})`, color: Colors.ink(rgb) } },
      changed ? "α* " : /^[<>]/.test(short) ? "" : name, // <2.00 takes the width of α 1.50
      short,
    );
  }

  function thumbnail(canvas, rows) {
    const width = Math.max(1, Math.min(rows.columns, FINEST));
    const height = Math.max(1, Math.min(rows.rows, FINEST));
    const peak = new Float32Array(width * height);
    for (let row = 0; row < rows.rows; row++) {
      const line = Math.floor((row * height) / rows.rows) * width;
      for (let at = rows.crow[row]; at < rows.crow[row + 1]; at++) {
        const pixel = line + Math.floor((rows.col[at] * width) / rows.columns);
        if (rows.weight[at] > peak[pixel]) peak[pixel] = rows.weight[at];
      }
    }
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    // Masked keys stay empty; zeros have a color of their own, unlike the smallest weight (what a dense head left out is small).
    const zero = rows.cut ? Colors.weightRgb(0) : Colors.zeroRgb();
    for (let pixel = 0; pixel < peak.length; pixel++) {
      const row = Math.ceil(((Math.floor(pixel / width) + 1) * rows.rows) / height) - 1; // the last of the pixel
      const masked = Math.floor(((pixel % width) * rows.columns) / width) >= Data.visible(rows, row);
      if (peak[pixel] > 0 || !masked) image.data.set([...(peak[pixel] > 0 ? Colors.weightRgb(peak[pixel]) : zero), 255], 4 * pixel);
    }
    context.putImageData(image, 0, 0);
  }

  // A head on one sentence as a button of its own, with a line above and content below the thumbnail.
  function card(rows, onclick, above, ...below) {
    const canvas = el("canvas", { class: "thumbnail", "aria-hidden": "true" });
    thumbnail(canvas, rows);
    return Dom.button([above, canvas, ...below], onclick, { class: "head wide" });
  }

  // onOpen(key): a head was chosen.
  function create({ onOpen }) {
    const element = el("div.columns");
    let content = null;
    let buttons = new Map();

    // {run, rowsOf(key) -> rows or null, alphaNow(head) -> {alpha, changed}, key: the chosen head, overall: whether densities are
    // those of a data set}
    function show(next) {
      content = next;
      buttons = new Map();
      element.replaceChildren(...Data.attnTypes(next.run).map((attnType) => panel(attnType)));
      choose(next.key);
      const jobs = [...buttons].map(([key, node]) => () => paint(key, node));
      Dom.inSlices("thumbnails", jobs);
    }

    function panel(attnType) {
      const heads = Data.headsOf(content.run, attnType);
      const layers = [...new Set(heads.map((head) => head.layer))].sort((a, b) => a - b);
      const widest = Math.max(...layers.map((layer) => heads.filter((head) => head.layer === layer).length));
      const grid = el("div", {
        class: "grid",
        style: { "--heads": widest },
        role: "group",
        "aria-label": Data.ATTENTION_TITLES[attnType],
      });
      for (const layer of layers) {
        const own = heads.filter((head) => head.layer === layer).sort((a, b) => a.head - b.head);
        grid.append(el("div.layer", el("span.layer-name", `layer ${layer}`), own.map(button)));
      }
      Dom.roving(grid, ".head", () => widest);
      return el(
        "section.panel",
        el("h3", Data.ATTENTION_TITLES[attnType], el("small", (content.run.normalizers || {})[attnType] || "")),
        grid,
      );
    }

    function button(head) {
      const key = Data.keyOf(head);
      const parts = [el("canvas", { class: "thumbnail", "aria-hidden": "true" }), el("span.facts")];
      const node = Dom.button(parts, () => onOpen(key), { class: "head", "data-key": key, tabindex: -1 });
      buttons.set(key, node);
      label(node, head);
      return node;
    }

    function label(node, head) {
      const { alpha, changed } = content.alphaNow(head);
      const key = Data.keyOf(head);
      const rows = changed ? content.rowsOf(key) : null;
      const density = rows ? Data.density(rows) : head.density;
      const here = rows && content.overall ? " here" : ""; // else the percentage is that of the whole data set
      node
        .querySelector(".facts")
        .replaceChildren(chip(alpha, changed), el("span.density", `${Numbers.percent(density)}${here}`));
      node.setAttribute(
        "aria-label",
        `${Data.titleOf(key)}: alpha ${alpha === null ? "none" : Numbers.alpha(alpha)}, density ${Numbers.percent(density)}${here && " on this sentence"}`,
      );
      node.title = `${key} · density ${Numbers.percent(density)}${here && " on this sentence"}`;
    }

    function paint(key, node) {
      const rows = content.rowsOf(key);
      node.classList.toggle("absent", !rows);
      if (rows) thumbnail(node.querySelector("canvas"), rows);
    }

    function refresh(key) {
      const node = buttons.get(key);
      if (!node) return;
      label(node, Data.findHead(content.run, key));
      paint(key, node);
    }

    function choose(key) {
      for (const [own, node] of buttons) {
        node.setAttribute("aria-pressed", own === key);
        node.tabIndex = own === key ? 0 : -1;
      }
    }

    return { element, show, refresh, choose };
  }

  return { create, chip, card };
})();
