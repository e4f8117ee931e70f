// What the measures found, to look at: the best candidates for each role, and heads that are sparse in one sentence and dense
// in another of similar length (Figure 10 of the paper).

const Roles = (() => {
  "use strict";

  const { el } = Dom;
  const BEST = 4; // candidates shown per role
  const PAIRS = 3;

  function candidates(run) {
    const found = new Map();
    for (const head of run.heads) {
      for (const role of head.roles || []) {
        if (!found.has(role.role)) found.set(role.role, []);
        found.get(role.role).push({ key: Data.keyOf(head), score: role.score, example: (role.examples || [])[0] });
      }
    }
    for (const heads of found.values()) heads.sort((a, b) => b.score - a.score);
    return [...found].sort(([, a], [, b]) => b[0].score - a[0].score);
  }

  // Each role with its best heads; a button leads to the sentence that shows it best: onExample(key, sentence or undefined).
  function roles(run, onExample) {
    const found = candidates(run);
    if (!found.length) return null;
    return el(
      "dl",
      { class: "found-roles", "aria-label": "Best candidates for each role" },
      found.map(([role, heads]) => [
        el("dt", {}, role),
        el(
          "dd",
          {},
          heads
            .slice(0, BEST)
            .map(({ key, score, example }) =>
              el(
                "button",
                { type: "button", class: "role", onclick: () => onExample(key, example) },
                el("code", {}, key),
                " ",
                el("small", {}, Numbers.fixed(score)),
              ),
            ),
          heads.length > BEST && el("span", { class: "note" }, `and ${heads.length - BEST} more`),
        ),
      ]),
    );
  }

  function picture(run, key, place, density, onExample) {
    const sentence = run.sentences[place];
    const rows = sentence && Data.storedRows(sentence, key);
    if (!rows) return null;
    const canvas = el("canvas", { class: "thumbnail", "aria-hidden": "true" });
    Heads.thumbnail(canvas, rows);
    return el(
      "button",
      { type: "button", class: "head wide", onclick: () => onExample(key, place) },
      canvas,
      el("span", { class: "facts" }, el("b", {}, Numbers.percent(density)), el("span", {}, `${rows.columns} keys`)),
      el("span", { class: "quote" }, sentence.source_text),
    );
  }

  // Heads whose sparsity follows the sentence; null if the run has none.
  function varied(run, onExample) {
    const pairs = (run.varied || []).slice(0, PAIRS).map((pair) => {
      const key = Data.keyOf(pair);
      const pictures = [
        picture(run, key, pair.sparse, pair.densities[0], onExample),
        picture(run, key, pair.dense, pair.densities[1], onExample),
      ];
      const alpha = Data.alphaOf(run, Data.findHead(run, key) || pair);
      return (
        pictures.every(Boolean) &&
        el("div", { class: "pair" }, el("h4", {}, key, " ", Heads.chip(alpha)), el("div", {}, pictures))
      );
    });
    const whole = pairs.filter(Boolean);
    if (!whole.length) return null;
    return Charts.figure(
      "One head, two sentences",
      `Of similar length, yet a head of ${run.name} looks at few keys in one and at many in the other. α is the same in both.`,
      el("div", { class: "pairs" }, whole),
    );
  }

  return { roles, varied };
})();
