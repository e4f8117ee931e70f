// One head, large: its heatmap or lines, a query in words and numbers, its measures and roles, and a slider that computes its
// weights for another alpha.

const Inspector = (() => {
  "use strict";

  const { el, button } = Dom;
  const HIGHEST = 3; // of the slider, unless the head's own alpha is above

  // The note below the slider in a report, which computes weights from stored scores.
  function storedNote({ canChange, changed, rows }) {
    if (!canChange)
      return "The scores of this sentence are not stored, so its weights cannot be recomputed; choose a shorter one.";
    if (!changed) return "Move it: the weights are recomputed from this head's scores, in your browser.";
    return `Computed here from this head's scores. Density on this sentence: ${Numbers.percent(Data.density(rows))}.`;
  }

  // onAlpha(key, alpha or null), onOpen(key): the next head, onExample(key, sentence index), onRow(row): another query.
  // Another page may set the note below the slider, its highest alpha, more controls, the title of the measures, and hide roles.
  function create({
    onAlpha,
    onOpen,
    onExample,
    onRow = () => {},
    noteOf = storedNote,
    highest = HIGHEST,
    controls = [],
    scope = "Over the whole data set",
    withRoles = true,
  }) {
    let content = null;
    let rows = null;
    let row = 0;
    let view = "map";
    const save = button("Save PNG", () => heatmap.save(content.key), { class: "quiet", title: "The map as it is in view" });
    const copy = button("Copy link", copyLink, { class: "quiet", title: "Of this page with this head, query and α" });
    let readsPredicted = false;

    const title = el("h3", { id: "head-title", tabindex: -1 });
    const code = el("code");
    const own = el("span.own");
    const tokens = Tokens.create({ onQuery: (next) => pick(next) });
    const heatmap = Heatmap.create({ onPick: (next, column) => pick(next, column) });
    const lines = Lines.create({ onQuery: (next) => pick(next) });
    const switches = el(
      "div",
      { class: "choice", role: "group", "aria-label": "How to draw the head" },
      viewButton("map", "Map"),
      viewButton("lines", "Lines"),
    );
    const rowsAs = el(
      "label.check",
      el("input", {
        type: "checkbox",
        onchange: (event) => {
          readsPredicted = event.target.checked;
          refresh();
        },
      }),
      "name rows by the token predicted",
    );
    const [small, large] = [el("i.swatch"), el("i.swatch")];
    const legend = el(
      "div.flow.legend",
      el("span.without", el("i.swatch.zero"), el("span", "exactly 0")),
      el("span", small, "small"),
      el("span", large, el("span.largest", "1")),
      el("span.future", el("i.swatch"), "not visible"),
    );
    const figure = el("div.figure");
    const slider = el("input", {
      type: "range",
      id: "alpha-slider",
      min: 1,
      max: highest,
      step: 0.01,
      "aria-describedby": "alpha-note",
      oninput: (event) => onAlpha(content.key, Number(event.target.value)),
    });
    const output = el("output", { for: "alpha-slider", id: "alpha-value" });
    const reset = button("Reset", () => onAlpha(content.key, null), { class: "quiet", id: "alpha-reset" });
    const ticks = el("div", { class: "ticks", "aria-hidden": "true" });
    const note = el("p", { class: "note", id: "alpha-note" });
    const control = el(
      "div.alpha-control",
      el("label", { for: "alpha-slider" }, "What if α were ", output, "?"),
      reset,
      slider,
      ticks,
      controls,
      note,
    );
    const measures = el("dl.measures");
    const roles = el("div.flow.roles");

    const element = el(
      "article",
      { class: "inspector", "aria-labelledby": "head-title" },
      el(
        "header",
        el("div.naming", title, el("p.flow", code, own)),
        el(
          "div.steps",
          save,
          copy,
          button("←", () => step(-1), { class: "quiet", "aria-label": "Previous head" }),
          button("→", () => step(1), { class: "quiet", "aria-label": "Next head" }),
        ),
      ),
      el(
        "div.sides",
        el("div.side.figure-side", el("div.flow.bar-above", switches, rowsAs), figure, legend),
        el("div.side", control, tokens.element),
      ),
      el("div.below", el("div", el("h4", scope), measures), withRoles && el("div", el("h4", "Head roles"), roles)),
    );

    function step(by) {
      const keys = content.run.heads.map(Data.keyOf);
      onOpen(keys[(keys.indexOf(content.key) + by + keys.length) % keys.length]);
    }

    async function copyLink() {
      try {
        await navigator.clipboard.writeText(location.href);
        copy.textContent = "Link copied";
      } catch {
        copy.textContent = "Copy the address instead"; // the browser does not let this page write to the clipboard
      }
      setTimeout(() => (copy.textContent = "Copy link"), 2000);
    }

    // Scrolls to the inspector and moves the focus there.
    function focus() {
      Dom.reveal(element.parentElement);
      title.focus({ preventScroll: true });
    }

    function viewButton(name, text) {
      const choose = () => {
        view = name;
        refresh();
      };
      return button(text, choose, { "data-view": name });
    }

    // {run, sentence, key, head, rows, alpha, changed, canChange, row: the first query}. rows is null where the weights of
    // this head are not stored.
    function show(next) {
      const moved = !content || content.key !== next.key || content.sentence !== next.sentence || content.run !== next.run;
      if (content?.head.attn_type !== next.head.attn_type) view = next.head.attn_type === "cross" ? "lines" : "map";
      content = next;
      if (moved) row = next.row ?? firstQuery(next.rows);
      title.textContent = Data.titleOf(next.key);
      code.textContent = next.key;
      describe();
      refresh();
    }

    // A query whose support is neither a single key nor all keys shows best what a head does.
    function firstQuery(rows) {
      if (!rows) return 0;
      for (let at = 1; at < rows.rows; at++) {
        const size = rows.crow[at + 1] - rows.crow[at];
        if (size > 1 && size < Data.visible(rows, at)) return at;
      }
      return Math.min(1, rows.rows - 1);
    }

    function describe() {
      const { run, head, alpha, changed, canChange } = content;
      const normalizer = run.normalizers[head.attn_type] || "";
      const learned = Data.alphaOf(run, head);
      own.replaceChildren(Heads.chip(alpha, changed), ` ${normalizer}`);
      const at = alpha ?? 1.5;
      slider.max = Math.max(highest, Math.ceil(learned ?? 0));
      slider.value = at;
      slider.disabled = !canChange;
      slider.setAttribute("aria-valuetext", `alpha ${Numbers.alpha(at)}`);
      output.textContent = alpha === null ? `1 … ${highest}` : `${Numbers.alpha(alpha)}${alpha > 2 ? " (beyond sparsemax)" : ""}`;
      reset.disabled = !changed;
      reset.textContent = learned === null ? `Reset to ${normalizer}` : `Reset to ${Numbers.alpha(learned)}`;
      const position = (value) => `${(100 * (value - 1)) / (Number(slider.max) - 1)}%`;
      ticks.replaceChildren(
        ...[
          [1, "softmax"],
          [1.5, "1.5"],
          [2, "sparsemax"],
          [Number(slider.max), slider.max],
        ].map(([value, text]) => el("span", { style: { left: position(value) } }, text)),
        learned === null ? "" : el("i", { style: { left: position(learned) }, title: "this head's own alpha" }),
      );
      note.textContent = noteOf(content);
      measures.replaceChildren(
        ...run.measures.heads
          .filter(({ name }) => name !== "alpha" && !Numbers.missing(head[name]))
          .map((one) => el("div", { title: one.text }, el("dt", one.label), el("dd", Numbers.measure(one, head[one.name])))),
      );
      if (withRoles) roles.replaceChildren(...Roles.buttons(head, (example) => onExample(content.key, example)));
    }

    function refresh() {
      const { sentence, head, key } = content;
      rows = content.rows;
      for (const one of switches.children) one.setAttribute("aria-pressed", one.dataset.view === view);
      rowsAs.hidden = head.attn_type === "encoder";
      legend.querySelector(".future").hidden = head.attn_type !== "decoder";
      tokens.element.hidden = !rows;
      legend.hidden = view === "lines";
      save.hidden = view === "lines" || !rows;
      if (!rows) {
        figure.replaceChildren(el("p.note", "The weights of this head are not stored for this sentence."));
        return;
      }
      small.style.background = Colors.weight(0);
      large.style.background = Colors.weight(1);
      const [swatch, meaning] = legend.querySelector(".without").children;
      swatch.classList.toggle("zero", !rows.cut);
      swatch.style.background = rows.cut ? Colors.weight(0) : "";
      meaning.textContent = Data.restText(rows);
      legend.querySelector(".largest").textContent = rows.weight.some((weight) => weight > 1) ? "1 or more" : "1"; // as in ReLA
      row = Math.min(row, rows.rows - 1);
      const pieces = Data.tokensOf(sentence, head.attn_type);
      const predicted = head.attn_type === "encoder" ? null : pieces.queries.slice(1, rows.rows + 1);
      const whole = predicted && predicted.length === rows.rows ? predicted : null;
      const shownRows = {
        rows,
        title: Data.titleOf(key),
        queries: readsPredicted && whole ? whole : pieces.queries.slice(0, rows.rows),
        keys: pieces.keys.slice(0, rows.columns),
        predicted: readsPredicted ? null : whole,
        keyTitle: head.attn_type === "decoder" ? "Target, keys" : "Source, keys",
        queryTitle: head.attn_type === "encoder" ? "Source, queries" : "Target, queries",
      };
      const current = view === "map" ? heatmap : lines;
      if (figure.firstChild !== current.element) figure.replaceChildren(current.element);
      tokens.show(shownRows);
      current.show(shownRows);
      mark(row);
    }

    function pick(next, column) {
      mark(next, column);
      onRow(row);
    }

    function mark(next, column = -1) {
      row = next;
      tokens.mark(row);
      if (view === "map") heatmap.mark(row, column);
      else lines.mark(row);
    }

    return { element, show, mark, focus, repaint: () => content && show(content) };
  }

  return { create, HIGHEST };
})();
