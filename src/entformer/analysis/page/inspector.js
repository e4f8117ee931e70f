// One head, large: its map or its lines, a query in words and numbers, its measures and the roles found for it, and the slider
// that asks what its weights would be with another alpha.

const Inspector = (() => {
  "use strict";

  const { el } = Dom;
  const HIGHEST = 3; // of the slider, unless the head's own alpha is above

  const MEASURES = [
    ["alpha_initial", "α before training", Numbers.alpha],
    ["density", "Density", Numbers.percent],
    ["support", "Keys with weight", (value) => Numbers.fixed(value, 1)],
    ["effective_keys", "Effective keys", (value) => Numbers.fixed(value, 1)],
    ["entropy", "Entropy, nats", Numbers.fixed],
    ["null_rate", "Rows without weight", Numbers.percent],
    ["-1", "On the previous token", Numbers.percent],
    ["0", "On itself", Numbers.percent],
    ["1", "On the next token", Numbers.percent],
    ["first_key", "On the first token", Numbers.percent],
    ["last_key", "On the last token", Numbers.percent],
    ["merging", "Subword merging", Numbers.percent],
    ["merging_pieces", "Merging, words of 2+", Numbers.percent],
    ["merging_with_self", "Merging, with self", Numbers.percent],
    ["interrogation", "Interrogation", Numbers.percent],
    ["interrogation_contrast", "As a statement", Numbers.percent],
    ["aer", "Alignment error", Numbers.percent],
    ["aer_shifted", "Alignment error, shifted", Numbers.percent],
  ];

  // What the note below the slider says in a report, which computes weights from stored scores.
  function storedNote({ canChange, changed, rows }) {
    if (!canChange)
      return "The scores of this sentence are not stored, so its weights cannot be computed anew; choose a shorter one.";
    if (!changed) return "Move it: the weights are computed anew from this head's scores, in your browser.";
    return `Computed here from this head's scores. Density on this sentence: ${Numbers.percent(Data.density(rows))}.`;
  }

  // onAlpha(key, alpha or null), onStep(+1 or -1) to the next head, onExample(key, sentence index), onRow(row): another query.
  // Another page may give its own note below the slider, its highest alpha, controls beside it, the name of the text that
  // the measures are of, and do without roles.
  function create({
    onAlpha,
    onStep,
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
    let readsPredicted = false;

    const title = el("h3", { id: "head-title", tabindex: -1 });
    const code = el("code", {});
    const own = el("span", { class: "own" });
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
      "label",
      { class: "check" },
      el("input", {
        type: "checkbox",
        onchange: (event) => {
          readsPredicted = event.target.checked;
          refresh();
        },
      }),
      "name rows by the token predicted",
    );
    const legend = el(
      "div",
      { class: "legend" },
      el("span", { class: "without" }, el("i", { class: "swatch zero" }), el("span", {}, "exactly 0")),
      el("span", {}, el("i", { class: "swatch small" }), "small"),
      el("span", {}, el("i", { class: "swatch large" }), "1"),
      el("span", { class: "future" }, el("i", { class: "swatch" }), "not visible"),
    );
    const figure = el("div", { class: "figure" });
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
    const reset = el(
      "button",
      { type: "button", class: "quiet", id: "alpha-reset", onclick: () => onAlpha(content.key, null) },
      "Reset",
    );
    const ticks = el("div", { class: "ticks", "aria-hidden": "true" });
    const note = el("p", { class: "note", id: "alpha-note" });
    const control = el(
      "div",
      { class: "alpha-control" },
      el("label", { for: "alpha-slider" }, "What if α were ", output, "?"),
      reset,
      slider,
      ticks,
      controls,
      note,
    );
    const measures = el("dl", { class: "measures" });
    const roles = el("div", { class: "roles" });

    const element = el(
      "article",
      { class: "inspector", "aria-labelledby": "head-title" },
      el(
        "header",
        {},
        el("div", { class: "naming" }, title, el("p", {}, code, own)),
        el(
          "div",
          { class: "steps" },
          el("button", { type: "button", class: "quiet", "aria-label": "Previous head", onclick: () => onStep(-1) }, "←"),
          el("button", { type: "button", class: "quiet", "aria-label": "Next head", onclick: () => onStep(1) }, "→"),
        ),
      ),
      el(
        "div",
        { class: "sides" },
        el("div", { class: "side picture" }, el("div", { class: "bar-above" }, switches, rowsAs), figure, legend),
        el("div", { class: "side" }, control, tokens.element),
      ),
      el(
        "div",
        { class: "below" },
        el("div", {}, el("h4", {}, scope), measures),
        withRoles && el("div", {}, el("h4", {}, "Found roles"), roles),
      ),
    );

    function viewButton(name, text) {
      return el(
        "button",
        {
          type: "button",
          "data-view": name,
          onclick: () => {
            view = name;
            refresh();
          },
        },
        text,
      );
    }

    // {run, sentence, key, head, rows, alpha, changed, canChange}, and row: the query to begin with, if that is settled. rows
    // is null where the sentence does not hold this head.
    function show(next) {
      const moved = !content || content.key !== next.key || content.sentence !== next.sentence || content.run !== next.run;
      if (content && content.head.kind !== next.head.kind) view = next.head.kind === "cross" ? "lines" : "map";
      content = next;
      if (moved) row = next.row ?? firstTelling(next.rows);
      title.textContent = Data.titleOf(next.key);
      code.textContent = next.key;
      describe();
      refresh();
    }

    // The query whose support is neither a single key nor everything shows best what a head does.
    function firstTelling(rows) {
      if (!rows) return 0;
      for (let at = 1; at < rows.rows; at++) {
        const size = rows.crow[at + 1] - rows.crow[at];
        if (size > 1 && size < Data.visible(rows, at)) return at;
      }
      return Math.min(1, rows.rows - 1);
    }

    function describe() {
      const { run, head, alpha, changed, canChange } = content;
      const normalizer = (run.normalizers || {})[head.kind] || "";
      const learned = Data.alphaOf(run, head);
      own.replaceChildren(Heads.chip(alpha, changed), ` ${normalizer}`);
      const at = alpha ?? 1.5;
      slider.max = Math.max(highest, Math.ceil(learned ?? 0));
      slider.value = at;
      slider.disabled = !canChange;
      slider.setAttribute("aria-valuetext", `alpha ${Numbers.alpha(at)}`);
      output.textContent = alpha === null ? `1 … ${highest}` : Numbers.alpha(alpha);
      reset.disabled = !changed;
      reset.textContent = learned === null ? `Reset to ${normalizer}` : `Reset to ${Numbers.alpha(learned)}`;
      const place = (value) => `${(100 * (value - 1)) / (Number(slider.max) - 1)}%`;
      ticks.replaceChildren(
        ...[
          [1, "softmax"],
          [1.5, "1.5"],
          [2, "sparsemax"],
        ].map(([value, text]) => el("span", { style: { left: place(value) } }, text)),
        learned === null ? "" : el("i", { style: { left: place(learned) }, title: "this head's own alpha" }),
      );
      note.textContent = noteOf(content);
      const facts = MEASURES.map(([name, text, form]) => [
        text,
        form,
        name in head ? head[name] : (head.positional || {})[name],
      ]);
      measures.replaceChildren(
        ...facts
          .filter(([, , value]) => !Numbers.missing(value))
          .map(([text, form, value]) => el("div", {}, el("dt", {}, text), el("dd", {}, form(value)))),
      );
      roles.replaceChildren(...roleButtons(head, (example) => onExample(content.key, example)));
    }

    function refresh() {
      const { sentence, head, key } = content;
      rows = content.rows;
      for (const button of switches.children) button.setAttribute("aria-pressed", button.dataset.view === view);
      rowsAs.hidden = head.kind === "encoder";
      legend.querySelector(".future").hidden = head.kind !== "decoder";
      tokens.element.hidden = !rows;
      legend.hidden = view === "lines";
      if (!rows) {
        figure.replaceChildren(el("p", { class: "note" }, "This sentence does not hold the weights of this head."));
        return;
      }
      const [swatch, meaning] = legend.querySelector(".without").children;
      swatch.classList.toggle("zero", !rows.cut);
      meaning.textContent = Data.restText(rows);
      row = Math.min(row, rows.rows - 1);
      const pieces = Data.tokensOf(sentence, head.kind);
      const predicted =
        head.kind === "encoder" ? null : memo(sentence, "predicted", () => sentence.target.slice(1, rows.rows + 1));
      const read = memo(sentence, `read ${head.kind}`, () => pieces.queries.slice(0, rows.rows));
      const whole = predicted && predicted.length === rows.rows ? predicted : null;
      const shownRows = {
        rows,
        title: Data.titleOf(key),
        queries: readsPredicted && whole ? whole : read,
        keys: memo(sentence, `keys ${head.kind}`, () => pieces.keys.slice(0, rows.columns)),
        predicted: readsPredicted ? null : whole,
        keyTitle: head.kind === "decoder" ? "Target, keys" : "Source, keys",
        queryTitle: head.kind === "encoder" ? "Source, queries" : "Target, queries",
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

    return { element, show, mark, repaint: () => content && show(content), focus: () => title.focus({ preventScroll: true }) };
  }

  const kept = new WeakMap();

  // The same array every time, so that a component sees at once that its tokens are the same.
  function memo(sentence, name, make) {
    if (!kept.has(sentence)) kept.set(sentence, new Map());
    const own = kept.get(sentence);
    if (!own.has(name)) own.set(name, make());
    return own.get(name);
  }

  // One button per found role; it leads to the first sentence that shows it.
  function roleButtons(head, open) {
    const found = head.roles || [];
    if (!found.length) return [el("p", { class: "note" }, "None: no measure stands out.")];
    return found.map((role) => {
      const [example] = role.examples || [];
      const text = [role.role, " ", el("small", {}, Numbers.fixed(role.score))];
      if (example === undefined) return el("span", { class: "role" }, text);
      return el(
        "button",
        {
          type: "button",
          class: "role",
          "data-role": role.role,
          title: "Show an example sentence",
          onclick: (event) => {
            event.stopPropagation();
            open(example);
          },
        },
        text,
      );
    });
  }

  return { create, roleButtons };
})();
