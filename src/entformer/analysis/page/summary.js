// What the runs are: a card per run with its scores and its main figures, settings side by side, word alignment, a glossary.

const Summary = (() => {
  "use strict";

  const { el } = Dom;

  function alphaRange(run, heads) {
    const alphas = heads.map((head) => Data.alphaOf(run, head)).filter((alpha) => alpha !== null);
    const [low, high] = [Math.min(...alphas), Math.max(...alphas)].map(Numbers.alpha);
    if (!alphas.length) return "–";
    return low === high ? low : `${low} – ${high}`;
  }

  function card(run, index) {
    const rows = Data.attnTypes(run).map((attnType) => {
      const heads = Data.headsOf(run, attnType);
      const density = Numbers.percent(Data.mean(heads.map((head) => head.density)));
      return { cells: [attnType, run.normalizers[attnType] || "–", alphaRange(run, heads), density] };
    });
    const score = ({ about, value, name, digits = 1 }) =>
      el("div", { title: about }, el("b", Numbers.fixed(value, digits)), el("span", name));
    const signature = ({ about, name, signature }) =>
      el("p.signature", el("b", name), ` ${about || ""} `, signature && el("code", signature));
    const { sentences, name, source_tokens, target_tokens } = run.data;
    return el(
      "article",
      { class: "card", style: { "--own": Colors.run(index) } },
      el("h3", run.name, el("small", run.languages.filter(Boolean).join(" → "))),
      el("div.scores", run.scores.map(score)),
      Dom.table({ titles: ["", "normalizer", "α", "density"], rows }),
      el(
        "p.note",
        `${run.heads.length} heads, measured on ${Numbers.count(sentences)} ${Data.noun(run)}s of ${name || "the data"}` +
          ` (${Data.sizes(source_tokens, target_tokens)}).`,
      ),
      run.scores.length > 0 &&
        el("details", el("summary", "Data sets and signatures of the scores"), run.scores.map(signature)),
    );
  }

  const cards = (runs) => el("div.cards", runs.map(card));

  const valueText = (value) => (value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value));

  // Every setting of every run; those that differ come first and are marked.
  function settings(runs) {
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))].sort();
    if (!names.length) return el("p.note", "The runs have no recorded settings.");
    const differs = (name) => new Set(runs.map((run) => valueText(run.settings[name]))).size > 1;
    const rows = [...names.filter(differs), ...names.filter((name) => !differs(name))].map((name) => ({
      class: differs(name) ? "differs" : "",
      cells: [name, ...runs.map((run) => valueText(run.settings[name]))],
    }));
    return el(
      "details.settings",
      el("summary", `All ${names.length} settings${names.some(differs) ? "; those that differ come first" : ""}`),
      Dom.scroll("Settings", Dom.table({ titles: ["setting", ...runs.map((run) => run.name)], rows })),
    );
  }

  const ROWS = { normal: "where the word is predicted", shifted: "where the word is read" };
  const AVERAGES = {
    best_head: "best head",
    best_layer: "best layer, mean of its heads",
    best_layer_raw: "best layer, mean of raw weights",
    averaged: "mean of all heads",
    averaged_raw: "mean of all raw weights",
  };

  // Alignment error rates against gold links; null if no run has them.
  function alignment(runs) {
    const aligned = runs.filter((run) => run.alignment);
    if (!aligned.length) return null;
    const names = Object.keys(AVERAGES).filter((name) => aligned.some((run) => run.alignment[name]));
    const key = ({ layer, head }) => ["cross", layer, head].filter((part) => !Numbers.missing(part)).join(".");
    const cell = (found) =>
      found
        ? [
            el("b", Numbers.percent(found.aer)),
            " ",
            el("code", Numbers.missing(found.layer) ? "" : key(found)),
            el("p.note", ROWS[found.rows] || ""),
          ]
        : "–";
    const rows = aligned.map((run) => ({ cells: [run.name, ...names.map((name) => cell(run.alignment[name]))] }));
    const titles = ["run", ...names.map((name) => AVERAGES[name])];
    return Charts.figure(
      "Word alignment from cross attention",
      "Error rate against gold links, lower is better. Each target token is linked to the source token with the largest weight. " +
        "The means of normalized and of raw weights differ only where rows need not sum to one (ReLA).",
      Dom.scroll("Alignment error rates", Dom.table({ class: "alignment", titles, rows })),
    );
  }

  const glossary = ({ heads, layers }) =>
    [...heads, ...layers.filter(({ name }) => !heads.some((measure) => measure.name === name))].map(({ label, text }) => [
      el("dt", label),
      el("dd", text),
    ]);

  return { cards, settings, alignment, glossary };
})();
