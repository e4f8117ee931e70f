// Source and target, joined by cross attention: of one head, of a layer, or of all heads averaged. With the
// probability of the chosen target token and of its alternatives.

const Alignment = (() => {
  "use strict";

  const { el } = Dom;

  // The mean of several heads; missing heads are skipped.
  function average(sentence, keys) {
    const heads = keys.map((key) => Data.storedRows(sentence, key)).filter(Boolean);
    if (!heads.length) return null;
    const { rows, columns } = heads[0];
    const [crow, col, weight] = [[0], [], []];
    for (let row = 0; row < rows; row++) {
      const sums = new Map();
      for (const head of heads)
        for (let at = head.crow[row]; at < head.crow[row + 1]; at++)
          sums.set(head.col[at], (sums.get(head.col[at]) || 0) + head.weight[at] / heads.length);
      for (const column of [...sums.keys()].sort((a, b) => a - b)) {
        col.push(column);
        weight.push(sums.get(column));
      }
      crow.push(col.length);
    }
    return { rows, columns, crow, col, weight, causal: false };
  }

  // Cross attention; the self-attention of a model that continues text.
  const joining = (run) => Data.headsOf(run, run.task === "generation" ? "decoder" : "cross");

  // onStep(row): another target token; onChoice(choice): other heads.
  function create({ onStep, onChoice }) {
    const choice = el("select", { id: "alignment-choice", onchange: () => onChoice(choice.value) });
    const lines = Lines.create({ onQuery: onStep });
    const tokens = Tokens.create({ onQuery: onStep, titles: { queries: "Predicted token", keys: "Attended tokens" } });
    const next = el("div.next-token");
    const element = el(
      "div.inspector.aligned",
      el("label.choosing", "Attention of ", choice),
      el("div.sides", el("div.side.figure-side", lines.element), el("div.side", tokens.element, next)),
    );
    let content = null;

    function fill(run) {
      const heads = joining(run);
      const layers = [...new Set(heads.map((head) => head.layer))];
      const groups = layers.map((layer) => {
        const own = heads.filter((head) => head.layer === layer).map(Data.keyOf);
        return el(
          "optgroup",
          { label: `Layer ${layer}` },
          el("option", { value: `layer ${layer}` }, `layer ${layer}, heads averaged`),
          own.map((key) => el("option", { value: key }, `head ${key}`)),
        );
      });
      choice.replaceChildren(el("option", { value: "all" }, "all heads, averaged"), ...groups);
    }

    function rowsOf({ run, sentence, chosen }) {
      const heads = joining(run);
      const layer = /^layer (\d+)$/.exec(chosen);
      const keys = layer ? heads.filter((head) => head.layer === Number(layer[1])) : heads;
      return chosen.includes(".") ? Data.storedRows(sentence, chosen) : average(sentence, keys.map(Data.keyOf));
    }

    // {run, sentence, chosen, step}
    function show(latest) {
      if (!choice.children.length) fill(latest.run);
      const known = [...choice.options].some((option) => option.value === latest.chosen);
      content = { ...latest, chosen: known ? latest.chosen : "all" };
      choice.value = content.chosen;
      const rows = rowsOf(content);
      element.querySelector(".sides").hidden = !rows;
      if (!rows) return;
      const { queries: target, keys: source } = Data.tokensOf(latest.sentence, "cross");
      const shown = {
        rows,
        title: "Alignment",
        queries: target.slice(1),
        keys: source.length ? source : target.slice(0, -1),
        predicted: null,
        keyTitle: source.length ? "Source" : "Earlier tokens",
        queryTitle: source.length ? "Target" : "Predicted",
      };
      tokens.show(shown);
      lines.show(shown);
      mark(latest.step);
    }

    function mark(step) {
      lines.mark(step);
      tokens.mark(step);
      describe(content.sentence.steps[step]);
    }

    function describe(step) {
      const listed = step.best.some(({ piece }) => piece === step.piece);
      const all = listed ? step.best : [...step.best, { piece: step.piece, probability: step.probability }];
      next.replaceChildren(
        el("h4", "The next token", el("small", "probability, most likely first")),
        el(
          "ol.support.next",
          all.map(({ piece, probability }) => {
            const own = piece === step.piece;
            const style = { width: `${100 * probability}%` };
            return Tokens.line(piece, own ? "this" : "", probability, style, { class: own ? "predicted" : "" });
          }),
        ),
      );
    }

    return { element, show, mark };
  }

  return { create };
})();
