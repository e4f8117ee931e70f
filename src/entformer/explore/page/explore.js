// The explorer: keeps what is typed, chosen and tried out, asks the server, and tells every part of the page.

(() => {
  "use strict";

  const { el } = Dom;
  const at = (id) => document.getElementById(id);
  const TYPING = 600; // milliseconds of silence before a typed sentence is translated
  const MOVING = 140; // and before a moved alpha is

  let model = null; // what /api/model says; its heads carry the measures of the sentence shown
  let sentence = null; // the last answer of /api/attention
  let outcome = { trained: null, changed: null };
  const state = { text: "", beam: 5, nBest: 3, side: "trained", index: 0, step: 0, key: null, chosen: "all" };
  const alphas = new Map(); // head -> alpha tried out

  const translations = Translations.create({ onChoose: chooseCandidate });
  const alignment = Alignment.create({ onStep: setStep, onChoice: chooseAlignment });
  const changes = Changes.create({
    onOpen: (key) => open(key, true),
    onRemove: (keys) => changeAll(keys, null),
    onReset: resetAll,
    onAll: (kind, alpha) => changeAll(adjustable(kind), alpha),
  });
  const heads = Heads.create({ onOpen: (key) => open(key, true) });
  const inspector = Inspector.create({
    onAlpha: tryAlpha,
    onStep: stepHead,
    onRow: (row) => Data.parseKey(state.key).kind !== "encoder" && setStep(row),
    noteOf,
    controls: [
      el(
        "div",
        { class: "presets", role: "group", "aria-label": "Try this head as" },
        Changes.PRESETS.map(([alpha, name]) =>
          el(
            "button",
            { type: "button", class: "quiet", "data-alpha": alpha, onclick: () => tryAlpha(state.key, alpha) },
            `as ${name}`,
          ),
        ),
      ),
    ],
    scope: "On this sentence",
    withRoles: false,
  });

  // ---- asking ----------------------------------------------------------------------------------------------------------

  let asked = 0; // number of the last question; answers to older ones are dropped
  let timer = 0;

  function later(milliseconds) {
    clearTimeout(timer);
    timer = setTimeout(ask, milliseconds);
  }

  const known = { name: "", answer: null }; // the translation as trained, which stays while alphas move

  async function ask() {
    clearTimeout(timer);
    const own = ++asked;
    remember();
    if (!state.text.trim()) return show(null);
    busy(true);
    try {
      const question = { text: state.text, beam: state.beam, n_best: Math.min(state.nBest, state.beam) };
      const name = JSON.stringify(question);
      const trained = known.name === name ? known.answer : await Api.translate(question);
      if (own !== asked) return;
      Object.assign(known, { name, answer: trained });
      const changed = alphas.size ? await Api.translate({ ...question, alphas: tried() }) : null;
      if (own !== asked) return;
      await look(own, { trained, changed });
    } catch (problem) {
      fail(own, problem);
    } finally {
      if (own === asked) busy(false);
    }
  }

  const tried = () => Object.fromEntries(alphas);

  // What the heads do on the chosen translation; the page changes when all of it is there.
  async function look(own, next) {
    if (!next.changed) state.side = "trained";
    const answer = next[state.side] || next.trained;
    state.index = Math.min(state.index, answer.candidates.length - 1);
    const found = await Api.attention({
      text: state.text,
      target_ids: answer.candidates[state.index].ids,
      alphas: state.side === "changed" ? tried() : {},
    });
    if (own !== asked) return;
    outcome = next;
    show(found);
  }

  async function chooseCandidate(side, index) {
    Object.assign(state, { side, index });
    showTranslations();
    const own = ++asked;
    busy(true);
    try {
      await look(own, outcome);
    } catch (problem) {
      fail(own, problem);
    } finally {
      if (own === asked) busy(false);
    }
  }

  // A head that did not fit into the answer is asked for by itself.
  async function fetchHead(key) {
    const shown = sentence;
    try {
      const target = outcome[state.side].candidates[state.index].ids;
      const question = { text: state.text, target_ids: target, heads: [key], alphas: state.side === "changed" ? tried() : {} };
      const found = await Api.oneHead(question);
      if (shown !== sentence) return;
      sentence.heads[key] = found.heads[key];
      measure(Data.findHead(model, key));
      heads.refresh(key);
      if (state.key === key) inspect();
    } catch (problem) {
      if (!Api.replaced(problem)) say(problem);
    }
  }

  function fail(own, problem) {
    if (own !== asked || Api.replaced(problem)) return;
    say(problem);
  }

  function say(problem) {
    const known = problem instanceof Api.Problem;
    at("problem").textContent = known ? problem.message : `Something went wrong here: ${problem.message}`;
    at("problem").hidden = false;
    at("text").setAttribute("aria-invalid", "true");
  }

  function busy(is) {
    document.body.toggleAttribute("data-busy", is);
    if (is) {
      at("problem").hidden = true;
      at("text").removeAttribute("aria-invalid");
    }
  }

  // ---- alphas ----------------------------------------------------------------------------------------------------------

  const keysOf = () => model.heads.map(Data.keyOf);

  function setAlpha(key, alpha) {
    const own = Data.alphaOf(model, Data.findHead(model, key));
    if (alpha === null || Math.abs(alpha - own) < 1e-9) alphas.delete(key);
    else alphas.set(key, alpha);
  }

  function changed(wait) {
    Object.assign(state, { side: alphas.size ? "changed" : "trained", index: 0 });
    changes.show(model, alphas);
    inspect();
    later(wait);
  }

  function tryAlpha(key, alpha) {
    setAlpha(key, alpha);
    heads.refresh(key);
    changed(MOVING);
  }

  function changeAll(keys, alpha) {
    for (const key of keys) setAlpha(key, alpha);
    changed(0);
  }

  const adjustable = (kind) =>
    model.heads.filter((head) => head.adjustable && ["all", head.kind].includes(kind)).map(Data.keyOf);

  function resetAll() {
    alphas.clear();
    changed(0);
  }

  // Who moves an alpha far down the page sees up here what it does to the translation.
  let translationsSeen = true;
  function showBar() {
    const [before, after] = [outcome.trained, outcome.changed];
    at("bar").hidden = translationsSeen || !after || !alphas.size;
    if (at("bar").hidden) return;
    const [old, now] = [before.candidates[0], after.candidates[0]];
    at("bar").replaceChildren(
      el("p", { lang: model.languages[1], class: "said" }, Words.marked(old.text, now.text, { gone: true })),
      el("span", { class: "note" }, Translations.verdict(old, now)),
      el("button", { type: "button", class: "quiet", onclick: resetAll }, "As trained"),
    );
  }

  // The alpha a head has in what is shown; that of a slider still in motion is ahead of the weights by a moment.
  function alphaNow(head) {
    const own = Data.alphaOf(model, head);
    const tested = state.side === "changed" ? alphas.get(Data.keyOf(head)) : undefined;
    return { alpha: tested ?? own, changed: tested !== undefined };
  }

  function noteOf({ head, run, changed: is, rows }) {
    if (!head.adjustable) return `These weights are ${run.normalizers[head.kind]}, not α-entmax: there is no α to change.`;
    if (!is) return "Move it, or choose below: the model translates anew with this head changed.";
    const density = rows ? Numbers.percent(Data.density(rows)) : "–";
    return `The whole model was run anew. Density of this head on this sentence: ${density}.`;
  }

  // ---- showing ---------------------------------------------------------------------------------------------------------

  function show(found) {
    sentence = found;
    for (const id of ["alignment", "heads"]) at(id).hidden = !sentence;
    at("examples").hidden = !model.examples.length;
    at("notes").replaceChildren(...((sentence && sentence.notes) || []).map((note) => el("p", { class: "note" }, note)));
    if (!sentence) outcome = { trained: null, changed: null };
    showTranslations();
    showCommand();
    at("counted").textContent = sentence
      ? `${sentence.source.length - 1} subwords of at most ${model.limits.tokens}; ${Math.round(
          (outcome.changed || outcome.trained).milliseconds + sentence.milliseconds,
        )} ms`
      : "";
    if (!sentence) return;
    state.step = Math.min(state.step, sentence.steps.length - 1);
    model.heads.forEach(measure);
    changes.show(model, alphas);
    for (const key of keysOf()) heads.refresh(key);
    showAlignment();
    inspect();
  }

  function showTranslations() {
    translations.show({ ...outcome, ...state, language: model.languages[1], count: alphas.size });
    showBar();
  }

  function showAlignment() {
    alignment.show({ run: model, sentence, chosen: state.chosen, step: state.step });
  }

  const rowsOf = (key) => (sentence ? Data.storedRows(sentence, key) : null);

  // Density, support, entropy and null rows of a head on the sentence that is shown.
  function measure(head) {
    const rows = rowsOf(Data.keyOf(head));
    const [support, entropy, empty] = [[], [], []];
    for (let row = 0; rows && row < rows.rows; row++) {
      const found = Data.support(rows, row);
      const total = found.reduce((sum, { weight }) => sum + weight, 0);
      support.push(found.length);
      empty.push(found.length ? 0 : 1);
      if (total > 0) entropy.push(-found.reduce((sum, { weight }) => sum + (weight / total) * Math.log(weight / total), 0));
    }
    Object.assign(head, {
      density: rows ? Data.density(rows) : null,
      support: Data.mean(support),
      entropy: entropy.length ? Math.max(Data.mean(entropy), 0) : null,
      effective_keys: Data.mean(entropy.map(Math.exp)),
      null_rate: Data.mean(empty),
    });
  }

  function inspect() {
    const head = Data.findHead(model, state.key);
    if (!sentence || !head) return;
    if (sentence.omitted.includes(state.key) && !sentence.heads[state.key]) fetchHead(state.key);
    inspector.show({
      run: model,
      sentence,
      key: state.key,
      head,
      rows: rowsOf(state.key),
      row: head.kind === "encoder" ? undefined : state.step,
      ...alphaNow(head),
      canChange: head.adjustable,
    });
    for (const button of document.querySelectorAll(".presets button")) {
      button.disabled = !head.adjustable;
      button.setAttribute("aria-pressed", Math.abs(alphaNow(head).alpha - Number(button.dataset.alpha)) < 1e-9);
    }
  }

  function open(key, go) {
    state.key = key;
    heads.choose(key);
    inspect();
    remember();
    if (!go) return;
    Dom.reveal(at("one-head"));
    inspector.focus();
  }

  function stepHead(by) {
    const keys = keysOf();
    open(keys[(keys.indexOf(state.key) + by + keys.length) % keys.length], false);
  }

  // A target token chosen in one place is chosen everywhere.
  function setStep(step) {
    state.step = step;
    alignment.mark(step);
    if (Data.parseKey(state.key).kind !== "encoder") inspector.mark(step);
  }

  function chooseAlignment(chosen) {
    state.chosen = chosen;
    showAlignment();
  }

  function showCommand() {
    const body = { text: state.text || model.examples[0] || "…", ...(alphas.size ? { alphas: tried() } : {}) };
    const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
    const address = new URL("api/attention", document.baseURI).href;
    at("curl").textContent = `curl -s ${address} \\\n  -H 'Content-Type: application/json' \\\n  -d '${quoted}'`;
  }

  function repaint() {
    if (!sentence) return;
    heads.show({ run: model, sentence, rowsOf, alphaNow });
    heads.choose(state.key);
    showAlignment();
    inspector.repaint();
  }

  // ---- the address holds all of it, so a reload or a bookmark comes back to it -----------------------------------------

  function remember() {
    const chosen = new URLSearchParams({ text: state.text, head: state.key || "", beam: state.beam, n: state.nBest });
    if (alphas.size) chosen.set("alphas", [...alphas].map(([key, alpha]) => `${key}:${alpha}`).join(","));
    try {
      history.replaceState(null, "", `#${chosen}`);
    } catch {
      // Browsers allow only so many changes of the address in a time; the next one will do.
    }
  }

  function recall() {
    const chosen = new URLSearchParams(location.hash.slice(1));
    const number = (name, most, usual) => Math.min(Math.max(Math.trunc(Number(chosen.get(name))) || usual, 1), most);
    state.text = (chosen.get("text") ?? model.examples[0] ?? "").slice(0, model.limits.characters);
    state.beam = number("beam", model.limits.beam, 5);
    state.nBest = number("n", model.limits.n_best, 3);
    const [lowest, highest] = model.limits.alpha;
    for (const part of (chosen.get("alphas") || "").split(",")) {
      const [key, alpha] = [part.split(":")[0], Number(part.split(":")[1])];
      const head = Data.findHead(model, key);
      if (head && head.adjustable && alpha >= lowest && alpha <= highest) setAlpha(key, alpha);
    }
    const first = model.heads.find((head) => head.kind === "cross") || model.heads[0];
    state.key = Data.findHead(model, chosen.get("head") || "") ? chosen.get("head") : Data.keyOf(first);
    state.side = alphas.size ? "changed" : "trained";
  }

  // ---- starting --------------------------------------------------------------------------------------------------------

  function languageName(code) {
    try {
      return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
    } catch {
      return code;
    }
  }

  function describe() {
    const [from, to] = model.languages.map(languageName);
    const count = new Set(Object.values(model.normalizers)).size === 1 ? model.normalizers.cross : "mixed";
    at("from").textContent = `${from} sentence, to ${to}${model.lowercase ? " (read in lower case)" : ""}`;
    at("text").lang = model.languages[0];
    at("text").maxLength = model.limits.characters;
    at("facts").textContent =
      `${from} to ${to}, ${model.heads.length} heads (${count}), ${Numbers.count(model.parameters)} parameters, ` +
      `step ${Numbers.count(model.step)}, entformer ${model.entformer}`;
    at("examples").replaceChildren(
      el("span", { class: "note" }, "Or try"),
      ...model.examples.map((text) =>
        el("button", { type: "button", class: "quiet example", lang: model.languages[0], onclick: () => type(text) }, text),
      ),
    );
    const numbers = (most) => Array.from({ length: most }, (_, index) => el("option", { value: index + 1 }, index + 1));
    at("beam").replaceChildren(...numbers(model.limits.beam));
    at("n-best").replaceChildren(...numbers(model.limits.n_best));
  }

  function type(text) {
    at("text").value = state.text = text;
    at("text").focus();
    ask();
  }

  function listen() {
    const text = at("text");
    text.addEventListener("input", () => {
      Object.assign(state, { text: text.value, index: 0, step: 0 });
      later(TYPING);
    });
    text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      ask();
    });
    at("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      ask();
    });
    for (const [id, name] of [
      ["beam", "beam"],
      ["n-best", "nBest"],
    ]) {
      at(id).value = state[name];
      at(id).addEventListener("change", (event) => {
        state[name] = Number(event.target.value);
        if (name === "nBest" && state.beam < state.nBest) at("beam").value = state.beam = state.nBest;
        state.index = 0;
        ask();
      });
    }
  }

  async function start() {
    Theme.start(at("theme"), repaint);
    try {
      model = await Api.model();
    } catch (problem) {
      say(problem);
      return;
    }
    describe();
    recall();
    listen();
    at("text").value = state.text;
    at("translations").append(translations.element);
    at("alignment-view").append(alignment.element);
    at("changes").append(changes.element);
    at("grid").append(heads.element);
    at("one-head").append(inspector.element);
    new IntersectionObserver(([seen]) => {
      translationsSeen = seen.isIntersecting;
      showBar();
    }).observe(at("translations"));
    heads.show({ run: model, sentence: null, rowsOf, alphaNow });
    heads.choose(state.key);
    show(null);
    await ask();
  }

  start();
})();
