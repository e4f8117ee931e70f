// The top of the report: what was found in one sentence, whether alphas left their start, what the model knows, and three heads
// worth meeting.

const Story = (() => {
  "use strict";

  const { el } = Dom;
  const COMMON = ["broad context", "rarely active"]; // how much a head attends to, not to what
  const MEET = 3;
  const ROLES = {
    "previous token": ["The previous-token head", (score) => `puts ${score} of its weight on the token before`],
    "current token": ["The same-token head", (score) => `puts ${score} of its weight on the token itself`],
    "next token": ["The next-token head", (score) => `puts ${score} of its weight on the token after`],
    induction: ["The induction head", (score) => `puts ${score} of its weight on what followed the same token before`],
    "duplicate token": ["The duplicate-token head", (score) => `puts ${score} of its weight on earlier copies of the token`],
    "merges subwords": ["The word-merging head", (score) => `puts ${score} of its weight on the other pieces of the same word`],
    "question mark": ["The question head", (score) => `puts ${score} more weight on a question mark than on a full stop in its place`],
    "first token": ["The first-token head", (score) => `puts ${score} of its weight on the first token`],
    "end of sentence": ["The end-of-sentence head", (score) => `puts ${score} of its weight on the end of the sentence`],
    "word alignment": ["The alignment head", (score) => `links ${score} of the words as the gold alignment does`],
  };

  const signed = (value) => Numbers.fixed(value, 1).replace(/^-/, "−");
  const named = (run, name) => run.scores.find((score) => score.name === name);

  // The first score of the run, compared with the same score of another run.
  function compared(runs, run) {
    const [score] = run.scores;
    if (!score) return null;
    const { name, value, comparison } = score;
    if (comparison) {
      const { baseline, difference, low, high, p_value: p } = comparison;
      return (
        `${name} differs by ${signed(difference)} from ${baseline} ` +
        `(95% interval ${signed(low)} to ${signed(high)}, p = ${Numbers.fixed(p, 2)})`
      );
    }
    const other = runs.find((one) => one !== run && named(one, name));
    if (!other) return `${name} ${signed(value)}`;
    return `${name} ${signed(value)}, ${signed(named(other, name).value)} for ${other.name} (difference not tested)`;
  }

  const sparsestHead = (heads) => [...heads].sort((a, b) => a.density - b.density)[0];

  function headline(runs, run) {
    const sparsest = sparsestHead(run.heads);
    const read = sparsest.density === 1 ? "every head reads all keys" : `the sparsest reads ${Numbers.percent(sparsest.density)} of the keys`;
    const count = `${run.heads.length} ${run.heads.length === 1 ? "head" : "heads"}`;
    return `${[count, read, compared(runs, run)].filter(Boolean).join("; ")}.`;
  }

  // The best candidates of different roles, of different attention types where there are such; then the sparsest heads.
  function worthMeeting(run) {
    const found = run.heads.flatMap((head) =>
      head.roles
        .filter(({ role, examples }) => !COMMON.includes(role) && examples.length)
        .map((role) => ({ head, ...role })),
    );
    found.sort((a, b) => b.score - a.score);
    const chosen = [];
    for (const repeats of [false, true])
      for (const one of found) {
        const seen = chosen.some((other) => other.head === one.head || other.role === one.role);
        const typed = chosen.some((other) => other.head.attn_type === one.head.attn_type);
        if (chosen.length < MEET && !seen && (repeats || !typed)) chosen.push(one);
      }
    const others = run.heads.filter((head) => !chosen.some((one) => one.head === head));
    for (const head of others.sort((a, b) => a.density - b.density).slice(0, MEET - chosen.length))
      chosen.push({ head, role: null, score: null, examples: [0] });
    return chosen;
  }

  // Heads without a role are told apart: "A sparse head", "Another sparse head", "A third sparse head".
  function titled(chosen) {
    const count = { sparse: 0, dense: 0 };
    return chosen.map((one) => {
      if (one.role) return one;
      const what = one.head.density < 1 ? "sparse" : "dense";
      return { ...one, title: `${["A", "Another", "A third"][count[what]++]} ${what} head` };
    });
  }

  function meeting(run, { head, role, title: unnamed, score, examples }, onExample) {
    const [index] = examples;
    const key = Data.keyOf(head);
    const sentence = run.sentences[index];
    const rows = sentence && Data.storedRows(sentence, key);
    if (!rows) return null;
    const [title, does] = ROLES[role] || [role ? `The ${role} head` : unnamed, () => ""];
    const what = score === null ? "" : does(Numbers.percent(score));
    const reads = `reads ${Numbers.percent(head.density)} of the keys`;
    return Heads.card(
      rows,
      () => onExample(key, index),
      el("b", title),
      el("span.facts", Heads.chip(Data.alphaOf(run, head)), el("code", key)),
      el("span.does", `It ${[what, reads].filter(Boolean).join(", and ")}.`),
      el("span.quote", { lang: run.languages[0] || null }, sentence.source_text || sentence.target_text),
    );
  }

  // runs, the run to tell of, onExample(key, sentence index).
  function create(runs, run, onExample) {
    if (!run.heads.length) return null;
    const heads = titled(worthMeeting(run))
      .map((one) => meeting(run, one, onExample))
      .filter(Boolean);
    return el(
      "div.story",
      el("p", { class: "headline" }, runs.length > 1 ? [el("b", run.name), ": "] : "", headline(runs, run)),
      run.alpha_sentence && el("p", { id: "alphas-moved" }, run.alpha_sentence),
      run.training_text && el("p", { class: "note", id: "knows" }, run.training_text),
      heads.length > 0 && el("h2", heads.length === MEET ? "Three heads worth meeting" : "Heads worth meeting"),
      heads.length > 0 && el("div.meeting", heads),
    );
  }

  return { create, sparsestHead };
})();
