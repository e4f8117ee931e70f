// The weights of one head as a map, queries down and keys across. Only what is in view is drawn, from the support alone, so a
// long sentence costs no more than a short one. Three types of cell: color = weight (where small ones were left out, theirs),
// hatched = exactly 0, empty = may not be seen.

const Heatmap = (() => {
  "use strict";

  const { el } = Dom;
  const FONT = "12px ui-sans-serif, system-ui, sans-serif";
  const SMALLEST = 1;
  const LARGEST = 40;
  const LABELED = 11; // cells from this size on are large enough for a label
  const NUMBERED = 30;
  const HATCHED = 5; // smaller cells have one color for zeros instead
  const SLANT = Math.SQRT1_2;

  function hatch(context) {
    const tile = document.createElement("canvas");
    const ratio = window.devicePixelRatio || 1;
    tile.width = tile.height = Math.round(6 * ratio);
    const pen = tile.getContext("2d");
    pen.strokeStyle = Colors.token("--hatch");
    pen.lineWidth = ratio;
    const size = tile.width;
    for (const shift of [-size, 0, size]) {
      pen.beginPath();
      pen.moveTo(shift, size);
      pen.lineTo(shift + size, 0);
      pen.stroke();
    }
    const pattern = context.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / ratio));
    return pattern;
  }

  // onPick(row, column): the pointer or the arrow keys went to that cell.
  function create({ onPick }) {
    const canvas = el("canvas", { tabindex: 0, role: "img" });
    const spacer = el("div.spacer", canvas);
    const scroller = el("div.scroller", spacer);
    const tip = el("div", { class: "tip", role: "status", hidden: true });
    const zoom = (label, text, work) => Dom.button(text, work, { class: "quiet", "aria-label": label, title: label });
    const tools = el(
      "div.zoom",
      zoom("Smaller cells", "−", () => resize(cell / 1.4)),
      zoom("Larger cells", "+", () => resize(cell * 1.4)),
      zoom("Fit the width", "fit", () => resize(0)),
    );
    const element = el("div.heatmap", tools, el("div.frame", scroller, tip));
    const context = canvas.getContext("2d");
    const cells = el("canvas"); // all cells in view; the marks of the chosen query are drawn over them
    const brush = cells.getContext("2d");
    let content = null;
    let painted = false; // whether `cells` is what is in view
    let picked = { row: 0, column: -1 };
    let cell = 0;
    let wanted = 0; // 0: as the width allows
    let left = 0;
    let top = 0;

    const draw = Dom.perFrame(paint);
    const drawAll = () => {
      painted = false;
      draw();
    };
    scroller.addEventListener("scroll", drawAll, { passive: true });
    new ResizeObserver(() => content && layout()).observe(element);

    function labels(pieces) {
      return pieces.map((piece) => {
        const { text } = Data.shown(piece);
        return text.length > 14 ? `${text.slice(0, 13)}…` : text;
      });
    }

    function show(next) {
      content = { ...next, rowLabels: labels(next.queries), columnLabels: labels(next.keys) };
      canvas.setAttribute(
        "aria-label",
        `${next.title}: weights of ${next.rows.rows} queries over ${next.rows.columns} keys. ` +
          "Arrow keys move from cell to cell.",
      );
      picked.row = Math.min(picked.row, next.rows.rows - 1);
      layout();
    }

    function resize(size) {
      wanted = size && Math.min(Math.max(size, SMALLEST), LARGEST);
      layout();
    }

    function layout() {
      const { rows, rowLabels, columnLabels } = content;
      const width = element.clientWidth;
      if (!width) return;
      context.font = FONT;
      const widest = (texts) => Math.ceil(Math.max(0, ...texts.map((text) => context.measureText(text).width)));
      const forRows = widest(rowLabels) + 14;
      const forColumns = Math.ceil(widest(columnLabels) * SLANT) + 18;
      const fit = Math.min((width - forRows - forColumns * 0.8) / rows.columns, LARGEST);
      // Short sentences keep their labels and scroll on a narrow screen; long ones are seen whole.
      cell = wanted || Math.max(fit, rows.columns <= 48 ? LABELED + 4 : SMALLEST);
      if (cell >= LABELED) cell = Math.floor(cell);
      const labeled = cell >= LABELED;
      left = labeled ? forRows : 8;
      top = labeled ? forColumns : 8;
      const full = {
        width: left + cell * rows.columns + (labeled ? forColumns * 0.8 : 8),
        height: top + cell * rows.rows + 8,
      };
      spacer.style.width = `${full.width}px`;
      spacer.style.height = `${full.height}px`;
      scroller.style.height = `${Math.min(full.height, Math.max(innerHeight * 0.78, 320)) + (full.width > width ? 12 : 0)}px`;
      const view = {
        width: Math.min(scroller.clientWidth, Math.ceil(full.width)),
        height: Math.min(scroller.clientHeight, Math.ceil(full.height)),
      };
      const ratio = devicePixelRatio || 1;
      canvas.width = Math.round(view.width * ratio);
      canvas.height = Math.round(view.height * ratio);
      canvas.style.width = `${view.width}px`;
      canvas.style.height = `${view.height}px`;
      drawAll();
    }

    function paint() {
      if (!content || !canvas.width) return;
      const { rows } = content;
      const ratio = devicePixelRatio || 1;
      const view = { width: canvas.width / ratio, height: canvas.height / ratio };
      const x0 = left - scroller.scrollLeft;
      const y0 = top - scroller.scrollTop;
      const firstRow = Math.max(0, Math.floor(scroller.scrollTop / cell));
      const lastRow = Math.min(rows.rows, Math.ceil((view.height - y0) / cell));
      const firstColumn = Math.max(0, Math.floor(scroller.scrollLeft / cell));
      const lastColumn = Math.min(rows.columns, Math.ceil((view.width - x0) / cell));
      if (!painted) paintCells(firstRow, lastRow, firstColumn, lastColumn, x0, y0, ratio);
      painted = true;
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.clearRect(0, 0, canvas.width, canvas.height);
      context.drawImage(cells, 0, 0);
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      clipTo(context, left, top, view.width, view.height);
      outline(x0, y0);
      context.restore();
      if (cell >= LABELED) write(firstRow, lastRow, firstColumn, lastColumn, x0, y0, view);
    }

    function paintCells(firstRow, lastRow, firstColumn, lastColumn, x0, y0, ratio) {
      const { rows } = content;
      cells.width = canvas.width; // which also clears it
      cells.height = canvas.height;
      brush.setTransform(ratio, 0, 0, ratio, 0, 0);
      clipTo(brush, left, top, canvas.width, canvas.height);
      const hatched = cell >= HATCHED && !rows.cut;
      const ground = hatched ? Colors.token("--zero") : rows.cut ? Colors.weight(0) : Colors.token("--exact-zero");
      for (const style of [ground, hatched ? hatch(brush) : null]) {
        if (!style) continue;
        brush.fillStyle = style;
        for (let row = firstRow; row < lastRow; row++) brush.fillRect(x0, y0 + row * cell, Data.visible(rows, row) * cell, cell);
      }
      brush.font = "10px ui-sans-serif, system-ui, sans-serif";
      brush.textAlign = "center";
      brush.textBaseline = "middle";
      for (let row = firstRow; row < lastRow; row++) {
        for (let at = rows.crow[row]; at < rows.crow[row + 1]; at++) {
          const column = rows.col[at];
          if (column < firstColumn || column >= lastColumn) continue;
          const rgb = Colors.weightRgb(rows.weight[at]);
          brush.fillStyle = `rgb(${rgb[0]},${rgb[1]},${rgb[2]})`;
          brush.fillRect(x0 + column * cell, y0 + row * cell, cell, cell);
          if (cell >= NUMBERED) {
            brush.fillStyle = Colors.ink(rgb);
            brush.fillText(Numbers.short(rows.weight[at]).replace(/^0\./, "."), x0 + (column + 0.5) * cell, y0 + (row + 0.5) * cell);
          }
        }
      }
      if (cell >= 8) grid(firstRow, lastRow, firstColumn, lastColumn, x0, y0);
      brush.restore();
    }

    // Until `pen.restore()`.
    function clipTo(pen, x, y, width, height) {
      pen.save();
      pen.beginPath();
      pen.rect(x, y, width, height);
      pen.clip();
    }

    function grid(firstRow, lastRow, firstColumn, lastColumn, x0, y0) {
      brush.fillStyle = Colors.token("--surface");
      for (let row = firstRow; row <= lastRow; row++)
        brush.fillRect(x0, y0 + row * cell - 0.5, content.rows.columns * cell, 1);
      for (let column = firstColumn; column <= lastColumn; column++) {
        brush.fillRect(x0 + column * cell - 0.5, y0, 1, content.rows.rows * cell);
      }
    }

    function outline(x0, y0) {
      const { row, column } = picked;
      context.strokeStyle = Colors.token("--ink");
      context.lineWidth = 1.5;
      context.strokeRect(x0 + 0.5, y0 + row * cell, Data.visible(content.rows, row) * cell - 1, cell);
      if (column < 0) return;
      context.lineWidth = 2.5;
      context.strokeRect(x0 + column * cell, y0 + row * cell, cell, cell);
    }

    function write(firstRow, lastRow, firstColumn, lastColumn, x0, y0, view) {
      const strong = new Set();
      for (let at = content.rows.crow[picked.row]; at < content.rows.crow[picked.row + 1]; at++)
        strong.add(content.rows.col[at]);
      context.textBaseline = "middle";
      clipTo(context, 0, top, left, view.height);
      context.textAlign = "right";
      for (let row = firstRow; row < lastRow; row++) {
        pen(row === picked.row, row === picked.row);
        context.fillText(content.rowLabels[row], left - 8, y0 + (row + 0.5) * cell);
      }
      context.restore();
      clipTo(context, left - 4, 0, view.width, top);
      context.textAlign = "left";
      for (let column = firstColumn; column < lastColumn; column++) {
        context.save();
        context.translate(x0 + (column + 0.5) * cell, top - 7);
        context.rotate(-Math.PI / 4);
        pen(strong.has(column), column === picked.column);
        context.fillText(content.columnLabels[column], 0, 0);
        context.restore();
      }
      context.restore();
    }

    function pen(dark, bold) {
      context.font = bold ? `bold ${FONT}` : FONT;
      context.fillStyle = Colors.token(dark ? "--ink" : "--faint");
    }

    function cellAt(event) {
      const box = canvas.getBoundingClientRect();
      const row = Math.floor((event.clientY - box.top - top + scroller.scrollTop) / cell);
      const column = Math.floor((event.clientX - box.left - left + scroller.scrollLeft) / cell);
      const inside = content && row >= 0 && row < content.rows.rows && column >= 0 && column < content.rows.columns;
      return inside && event.clientX - box.left >= left && event.clientY - box.top >= top ? { row, column } : null;
    }

    function showTip({ row, column }, x, y) {
      const { rows, queries, keys } = content;
      const found = Data.support(rows, row).find((entry) => entry.column === column);
      const held = found ? Numbers.weight(found.weight) : Data.restText(rows);
      const value = column >= Data.visible(rows, row) ? "not visible" : held;
      tip.textContent = `${Data.shown(queries[row]).text} → ${Data.shown(keys[column]).text}: ${value}`;
      tip.hidden = false;
      tip.style.left = `${Math.min(x, element.clientWidth - tip.offsetWidth - 4)}px`;
      tip.style.top = `${y}px`;
    }

    function tell(event) {
      const at = cellAt(event);
      tip.hidden = !at;
      if (!at) return;
      const box = element.querySelector(".frame").getBoundingClientRect();
      showTip(at, event.clientX - box.left + 14, event.clientY - box.top + 16);
      if (at.row !== picked.row || at.column !== picked.column) onPick(at.row, at.column);
    }

    canvas.addEventListener("pointermove", tell);
    canvas.addEventListener("pointerdown", tell);
    canvas.addEventListener("pointerleave", () => (tip.hidden = true));
    canvas.addEventListener("keydown", (event) => {
      const [down, over] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] || [];
      if (down === undefined) return;
      event.preventDefault();
      const row = Math.min(Math.max(picked.row + down, 0), content.rows.rows - 1);
      const column = Math.min(Math.max(picked.column + over, 0), content.rows.columns - 1);
      scroller.scrollTop = Math.min(Math.max(scroller.scrollTop, (row + 2) * cell - scroller.clientHeight + top), row * cell);
      scroller.scrollLeft = Math.min(
        Math.max(scroller.scrollLeft, (column + 2) * cell - scroller.clientWidth + left),
        column * cell,
      );
      onPick(row, column);
      const [right, below] = [left - scroller.scrollLeft + (column + 1) * cell, top - scroller.scrollTop + (row + 1) * cell + 8];
      showTip({ row, column }, Math.max(right, 0), below);
    });
    canvas.addEventListener("blur", () => (tip.hidden = true));

    function mark(row, column = -1) {
      picked = { row, column };
      draw();
    }

    // Saves what is in view as a file.
    function save(name) {
      const copy = el("canvas", { width: canvas.width, height: canvas.height });
      const pen = copy.getContext("2d");
      pen.fillStyle = Colors.token("--surface");
      pen.fillRect(0, 0, copy.width, copy.height);
      pen.drawImage(canvas, 0, 0);
      el("a", { download: `${name}.png`, href: copy.toDataURL("image/png") }).click();
    }

    return { element, show, mark, save };
  }

  return { create };
})();
