// What the runs are: a card per run with its scores and its main figures, the settings side by side, and word alignment.

const Summary = (() => {
  "use strict";

  const { el } = Dom;

  function card(run, index) {
    const counts = run.data || {};
    const facts = Data.kindsOf(run).map((kind) => {
      const heads = Data.headsOf(run, kind);
      const alphas = heads.map((head) => Data.alphaOf(run, head)).filter((alpha) => alpha !== null);
      const [low, high] = [Math.min(...alphas), Math.max(...alphas)];
      const range = !alphas.length
        ? "–"
        : Numbers.alpha(low) === Numbers.alpha(high)
          ? Numbers.alpha(low)
          : `${Numbers.alpha(low)} – ${Numbers.alpha(high)}`;
      return el(
        "tr",
        {},
        el("th", { scope: "row" }, kind),
        el("td", {}, (run.normalizers || {})[kind] || "–"),
        el("td", {}, range),
        el("td", {}, Numbers.percent(Data.mean(heads.map((head) => head.density)))),
      );
    });
    return el(
      "article",
      { class: "card", style: { "--own": Colors.run(index) } },
      el("h3", {}, run.name, el("small", {}, (run.languages || []).join(" → "))),
      el(
        "div",
        { class: "scores" },
        (run.scores || []).map((score) =>
          el("div", { title: score.about }, el("b", {}, Numbers.fixed(score.value, 1)), el("span", {}, score.name)),
        ),
      ),
      el(
        "table",
        {},
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            ["", "normalizer", "α", "density"].map((text) => el("th", { scope: "col" }, text)),
          ),
        ),
        el("tbody", {}, facts),
      ),
      el(
        "p",
        { class: "note" },
        `${run.heads.length} heads, read on ${Numbers.count(counts.sentences)} sentences of ${counts.name || "the data"}` +
          ` (${Numbers.count(counts.source_tokens)} source and ${Numbers.count(counts.target_tokens)} target tokens).`,
      ),
      (run.scores || []).length > 0 &&
        el(
          "details",
          {},
          el("summary", {}, "What the scores are of, and signatures"),
          run.scores.map((score) =>
            el(
              "p",
              { class: "signature" },
              el("b", {}, score.name),
              score.about ? ` ${score.about} ` : " ",
              score.signature && el("code", {}, score.signature),
            ),
          ),
        ),
    );
  }

  const cards = (runs) => el("div", { class: "cards" }, runs.map(card));

  const valueText = (value) => (value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value));

  // Every setting of every run; those that differ come first and are marked.
  function settings(runs) {
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings || {})))].sort();
    if (!names.length) return el("p", { class: "note" }, "The runs carry no settings.");
    const differs = (name) => new Set(runs.map((run) => valueText((run.settings || {})[name]))).size > 1;
    const lines = [...names.filter(differs), ...names.filter((name) => !differs(name))];
    return el(
      "details",
      { class: "settings" },
      el("summary", {}, `All ${names.length} settings${names.some(differs) ? "; those that differ come first" : ""}`),
      el(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": "Settings" },
        el(
          "table",
          {},
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              el("th", { scope: "col" }, "setting"),
              runs.map((run) => el("th", { scope: "col" }, run.name)),
            ),
          ),
          el(
            "tbody",
            {},
            lines.map((name) =>
              el(
                "tr",
                { class: runs.length > 1 && differs(name) ? "differs" : "" },
                el("th", { scope: "row" }, name),
                runs.map((run) => el("td", {}, valueText((run.settings || {})[name]))),
              ),
            ),
          ),
        ),
      ),
    );
  }

  const place = (found) =>
    Numbers.missing(found.layer) ? "" : `cross.${found.layer}${Numbers.missing(found.head) ? "" : `.${found.head}`}`;

  const ROWS = { normal: "where the word is predicted", shifted: "where the word is read" };

  // Alignment error rates against gold links; null if no run has them.
  function alignment(runs) {
    const rows = runs.filter((run) => run.alignment);
    if (!rows.length) return null;
    const ways = [
      ["best_head", "best head"],
      ["best_layer", "best layer, mean of shares"],
      ["best_layer_raw", "best layer, raw mean"],
      ["averaged", "all heads, mean of shares"],
      ["averaged_raw", "all heads, raw mean"],
    ].filter(([name]) => rows.some((run) => run.alignment[name]));
    return Charts.figure(
      "Word alignment from cross attention",
      "Error rate against gold links, lower is better. Each target token is linked to the source token with most weight. Heads " +
        "are averaged by their shares of each row, or raw; the two differ only where rows need not sum to one (ReLA).",
      el(
        "div",
        { class: "scroll" },
        el(
          "table",
          { class: "alignment" },
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              el("th", { scope: "col" }, "run"),
              ways.map(([, text]) => el("th", { scope: "col" }, text)),
            ),
          ),
          el(
            "tbody",
            {},
            rows.map((run) =>
              el(
                "tr",
                {},
                el("th", { scope: "row" }, run.name),
                ways.map(([name]) => {
                  const found = run.alignment[name];
                  if (!found) return el("td", {}, "–");
                  return el(
                    "td",
                    {},
                    el("b", {}, Numbers.percent(found.aer)),
                    " ",
                    el("code", {}, place(found)),
                    el("p", { class: "note" }, ROWS[found.rows] || ""),
                  );
                }),
              ),
            ),
          ),
        ),
      ),
    );
  }

  return { cards, settings, alignment };
})();
