// The report: reads the data, keeps the state (run, sentence, head, changed alphas), and updates every part of the page.

(() => {
  "use strict";

  const { el, at, put } = Dom;
  const report = JSON.parse(at("entformer-data").textContent);
  const runs = report.runs.map((one) => ({ ...one, measures: report.measures }));
  const alphas = new Map(); // "run index/key" -> alpha
  const state = { run: 0, sentence: 0, key: null, query: null };

  const run = () => runs[state.run];
  const sentence = () => run().sentences[state.sentence];

  const heads = Heads.create({ onOpen: (key) => open(key, true) });
  const inspector = Inspector.create({ onAlpha: changeAlpha, onOpen: (key) => open(key, false), onExample: openExample, onRow: chooseQuery });
  const table = HeadTable.create({ onOpen: (key) => open(key, true), onExample: openExample });
  const paths = AlphaPaths.create({ onOpen: (key) => open(key, true) });
  const compare = Compare.create({
    onOpen: (index, key) => {
      chooseRun(index);
      open(key, true);
    },
  });

  // Weights with a changed alpha are computed once per sentence and alpha.
  const computed = new Map();
  function rowsOf(key) {
    const alpha = alphas.get(`${state.run}/${key}`);
    if (alpha === undefined || !sentence() || !Data.hasScores(sentence(), key))
      return sentence() ? Data.storedRows(sentence(), key) : null;
    const name = `${state.run}/${state.sentence}/${key}`;
    const known = computed.get(name);
    if (known && known.alpha === alpha) return known.rows;
    const rows = Data.recomputedRows(sentence(), key, alpha);
    computed.set(name, { alpha, rows });
    return rows;
  }

  function alphaNow(head) {
    const key = Data.keyOf(head);
    const alpha = alphas.get(`${state.run}/${key}`);
    const changed = alpha !== undefined && Boolean(sentence()) && Data.hasScores(sentence(), key);
    return { alpha: changed ? alpha : Data.alphaOf(run(), head), changed };
  }

  function changeAlpha(key, alpha) {
    if (alpha === null) alphas.delete(`${state.run}/${key}`);
    else alphas.set(`${state.run}/${key}`, alpha);
    heads.refresh(key);
    inspect();
    remember();
  }

  function inspect() {
    const head = Data.findHead(run(), state.key);
    at("one-head").hidden = !head || !sentence();
    if (!head || !sentence()) return;
    inspector.show({
      run: run(),
      sentence: sentence(),
      key: state.key,
      head,
      rows: rowsOf(state.key),
      row: state.query ?? undefined,
      ...alphaNow(head),
      canChange: Data.hasScores(sentence(), state.key),
    });
  }

  function chooseQuery(row) {
    state.query = row;
    remember();
  }

  function open(key, go) {
    if (key !== state.key) state.query = null;
    state.key = key;
    heads.choose(key);
    paths.choose(key);
    inspect();
    remember();
    if (go) inspector.focus();
  }

  // A role's example is an index into the run's sentences.
  function openExample(key, index) {
    if (run().sentences[index]) chooseSentence(index);
    open(key, true);
  }

  // The story tells of the sparsest run.
  function openStory(key, index) {
    if (state.run !== sparsest()) chooseRun(sparsest());
    openExample(key, index);
  }

  function chooseSentence(index) {
    Object.assign(state, { sentence: index, query: null });
    showSentence();
    showGrid();
    inspect();
    compare.follow(runs, sentence() && sentence().id);
    remember();
  }

  function chooseRun(index) {
    const id = sentence() && sentence().id;
    state.run = index;
    at("run-choice").value = index;
    const same = run().sentences.findIndex((one) => one.id === id);
    Object.assign(state, { sentence: Math.max(same, 0), query: null });
    if (!Data.findHead(run(), state.key)) state.key = run().heads.length ? Data.keyOf(run().heads[0]) : null;
    fillSentences();
    showSentence();
    showGrid();
    showTable();
    showPaths();
    inspect();
    remember();
  }

  function showGrid() {
    heads.show({ run: run(), rowsOf, alphaNow, key: state.key, overall: true });
  }

  function showPaths() {
    put("start", AlphaPaths.start(run()), AlphaPaths.small(run(), (key) => open(key, true)));
    paths.show(run(), state.key);
  }

  function showTable() {
    put("head-roles", Roles.list(run(), openExample));
    put("varied", Roles.varied(run(), openExample));
    table.show(run());
    put("layer-table", Layers.table(run()));
  }

  const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

  function fillSentences() {
    const option = (one, index) => el("option", { value: index }, shorten(`${one.why}: ${one.source_text || one.target_text}`, 110));
    put("sentence-choice", ...run().sentences.map(option));
    at("heads-title").textContent = `Every head on one ${Data.noun(run())}`;
    at("sentence-name").textContent = Data.noun(run()) === "text" ? "Text" : "Sentence";
  }

  function showSentence() {
    at("sentence-choice").value = state.sentence;
    const one = sentence();
    if (!one) return put("sentence-text", el("p.note", "This report has no sentences."));
    const text = (lang, own, words = own) =>
      own && el("p", { lang, dir: "auto" }, lang && el("small", lang), el("span", words));
    put(
      "sentence-text",
      text(run().languages[0], one.source_text, markedWords(one.source_text, one.unknown || [])),
      text(run().languages[1], one.target_text),
      el("p.note", `Number ${one.id}: ${Data.sizes(one.source.length, one.target.length)}; reason: ${one.why}.`),
      Data.dropped(one) && el("p", { class: "note", id: "dropped" }, Data.dropped(one)),
    );
  }

  // Words that are not in the training data are marked.
  function markedWords(text, unknown) {
    return text.split(/(\s+)/).map((part) => {
      const word = unknown.find((one) => part.includes(one));
      if (word === undefined) return part;
      const [before, after] = [part.slice(0, part.indexOf(word)), part.slice(part.indexOf(word) + word.length)];
      return [before, el("mark", { title: "not in the training data" }, word), after];
    });
  }

  function remember() {
    const own = `${state.run}/`;
    const changed = [...alphas].filter(([name]) => name.startsWith(own)).map(([name, alpha]) => `${name.slice(own.length)}:${alpha}`);
    Dom.remember({
      run: state.run,
      sentence: state.sentence,
      head: state.key || "",
      ...(state.query === null ? {} : { query: state.query }),
      ...(changed.length ? { alphas: changed.join(",") } : {}),
    });
  }

  function recall() {
    const chosen = new URLSearchParams(location.hash.slice(1));
    const index = chosen.get("run");
    state.run = index !== null && runs[Number(index)] ? Number(index) : sparsest();
    if (run().sentences[Number(chosen.get("sentence"))]) state.sentence = Number(chosen.get("sentence"));
    const known = Data.findHead(run(), chosen.get("head") || "");
    state.key = known ? chosen.get("head") : firstHead();
    if (/^\d+$/.test(chosen.get("query") || "")) state.query = Number(chosen.get("query"));
    for (const [key, alpha] of Dom.alphasIn(chosen))
      if (Data.findHead(run(), key) && alpha >= 1 && alpha <= Inspector.HIGHEST) alphas.set(`${state.run}/${key}`, alpha);
  }

  // The first run to show: the one with the lowest density.
  function sparsest() {
    const densities = runs.map((one) => Data.mean(one.heads.map((head) => head.density)) ?? Infinity);
    return densities.indexOf(Math.min(...densities));
  }

  // The first head to show: the sparsest cross head, of a model without cross attention the sparsest of all.
  function firstHead() {
    const cross = Data.headsOf(run(), "cross");
    const head = Story.sparsestHead(cross.length ? cross : run().heads);
    return head ? Data.keyOf(head) : null;
  }

  // Colors that scripts have set do not follow the style sheet.
  function repaint() {
    showOverview();
    showGrid();
    showTable();
    showPaths();
    inspector.repaint();
    compare.show(runs, sentence() && sentence().id);
  }

  function showOverview() {
    put("story", Story.create(runs, runs[sparsest()], openStory));
    put("cards", Summary.cards(runs));
    put("settings", Summary.settings(runs));
    put("alignment", Summary.alignment(runs));
    put("glossary", ...Summary.glossary(report.measures).flat());
  }

  function start() {
    at("title").textContent = report.title;
    at("made").textContent = `entformer ${report.entformer}, ${report.created}`;
    Theme.start(at("theme"), repaint);
    if (!runs.length) {
      at("cards").textContent = "This report has no runs.";
      for (const id of ["heads", "table", "training", "figures", "setup"]) at(id).hidden = true;
      return;
    }
    recall();
    at("run-choice").replaceChildren(...runs.map((one, index) => el("option", { value: index }, one.name)));
    at("run-choice").value = state.run;
    at("run-field").hidden = runs.length < 2;
    at("run-choice").addEventListener("change", (event) => chooseRun(Number(event.target.value)));
    at("sentence-choice").addEventListener("change", (event) => chooseSentence(Number(event.target.value)));
    for (const [id, by] of [
      ["sentence-before", -1],
      ["sentence-after", 1],
    ]) {
      const count = () => run().sentences.length;
      at(id).addEventListener("click", () => count() && chooseSentence((state.sentence + by + count()) % count()));
    }
    at("grid").append(heads.element);
    at("one-head").append(inspector.element);
    at("head-table").append(table.element);
    at("paths").append(paths.element);
    at("compare").append(compare.element);
    fillSentences();
    showSentence();
    showOverview();
    showGrid();
    open(state.key, false);
    // Everything below the first screen is drawn after the first frame.
    Dom.inSlices("below", [
      () => showTable(),
      () => showPaths(),
      () => compare.show(runs, sentence() && sentence().id),
    ]);
  }

  start();
})();
