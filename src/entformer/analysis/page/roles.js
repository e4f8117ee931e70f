// Roles of heads: the best candidates for each, and heads that are sparse in one sentence and dense in another of similar
// length (Figure 10 of the paper).

const Roles = (() => {
  "use strict";

  const { el, button } = Dom;
  const BEST = 4; // candidates shown per role
  const PAIRS = 3;

  // One button per role of a head; it opens the first sentence that shows it.
  function buttons(head, open) {
    if (!head.roles.length) return [el("p.note", "None: no measure is high.")];
    return head.roles.map((role) => {
      const [example] = role.examples;
      const text = [role.role, " ", el("small", Numbers.fixed(role.score))];
      if (example === undefined) return el("span.role", text);
      const show = (event) => {
        event.stopPropagation();
        open(example);
      };
      return button(text, show, { class: "role", "data-role": role.role, title: "Show an example sentence" });
    });
  }

  function candidates(run) {
    const found = new Map();
    for (const head of run.heads) {
      for (const role of head.roles) {
        if (!found.has(role.role)) found.set(role.role, []);
        found.get(role.role).push({ key: Data.keyOf(head), score: role.score, example: role.examples[0] });
      }
    }
    for (const heads of found.values()) heads.sort((a, b) => b.score - a.score);
    return [...found].sort(([, a], [, b]) => b[0].score - a[0].score);
  }

  // Each role with its best heads; a button opens the sentence that shows it best: onExample(key, sentence or undefined).
  function list(run, onExample) {
    const found = candidates(run);
    if (!found.length) return null;
    const head = ({ key, score, example }) =>
      button([el("code", key), " ", el("small", Numbers.fixed(score))], () => onExample(key, example), { class: "role" });
    return el(
      "dl",
      { class: "head-roles", "aria-label": "Best candidates for each role" },
      found.map(([role, heads]) => [
        el("dt", role),
        el("dd", heads.slice(0, BEST).map(head), heads.length > BEST && el("span.note", `and ${heads.length - BEST} more`)),
      ]),
    );
  }

  function thumbnail(run, key, index, density, onExample) {
    const sentence = run.sentences[index];
    const rows = sentence && Data.storedRows(sentence, key);
    if (!rows) return null;
    return Heads.card(
      rows,
      () => onExample(key, index),
      null,
      el("span.facts", el("b", Numbers.percent(density)), el("span", `${rows.columns} keys`)),
      el("span.quote", sentence.source_text || sentence.target_text),
    );
  }

  // Heads whose sparsity depends on the sentence; null if the run has none.
  function varied(run, onExample) {
    const pairs = run.varied.slice(0, PAIRS).map((pair) => {
      const key = Data.keyOf(pair);
      const both = [pair.sparse, pair.dense].map((index, at) => thumbnail(run, key, index, pair.densities[at], onExample));
      const alpha = Data.alphaOf(run, Data.findHead(run, key) || pair);
      return (
        both.every(Boolean) && el("div.pair", el("h4", key, " ", Heads.chip(alpha)), el("div", both))
      );
    });
    const complete = pairs.filter(Boolean);
    if (!complete.length) return null;
    return Charts.figure(
      `One head, two ${Data.noun(run)}s`,
      `A head of ${run.name} attends to few keys in one ${Data.noun(run)} and to many in another of similar length.`,
      el("div.columns", complete),
    );
  }

  return { buttons, list, varied };
})();
