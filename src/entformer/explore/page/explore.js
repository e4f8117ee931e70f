// The explorer: keeps the state (sentence, head, changed alphas), sends requests, and updates every part of the page.

(() => {
  "use strict";

  const { el, button, at, put } = Dom;
  const TYPING = 600; // milliseconds of silence before a typed sentence is translated
  const MOVING = 140; // and before a moved alpha is

  let model = null; // the answer of /api/model; its heads have the measures of the sentence shown
  let sentence = null; // the last answer of /api/attention
  let outcome = { trained: null, changed: null };
  const state = { text: "", beam: 5, nBest: 3, tokens: 16, temperature: 0, side: "trained", index: 0, key: null, chosen: null };
  state.step = null; // the target token whose row is shown; null: the first that was not given
  const alphas = new Map(); // head -> changed alpha

  const translations = Translations.create({ onChoose: chooseCandidate });
  const alignment = Alignment.create({ onStep: setStep, onChoice: chooseAlignment });
  const changes = Changes.create({
    onOpen: (key) => open(key, true),
    onRemove: (keys) => changeAll(keys, null),
    onReset: resetAll,
    onAll: (attnType, alpha) => changeAll(adjustable(attnType), alpha),
  });
  const heads = Heads.create({ onOpen: (key) => open(key, true) });
  const inspector = Inspector.create({
    onAlpha: changeAlpha,
    onOpen: (key) => open(key, false),
    onRow: (row) => Data.parseKey(state.key).attnType !== "encoder" && setStep(row),
    noteOf,
    controls: [
      el(
        "div",
        { class: "flow presets", role: "group", "aria-label": "Try this head as" },
        Changes.PRESETS.map(([alpha, name]) =>
          button(`as ${name}`, () => changeAlpha(state.key, alpha), { class: "quiet", "data-alpha": alpha }),
        ),
      ),
    ],
    scope: "On this text",
    withRoles: false,
  });

  // ---- requests --------------------------------------------------------------------------------------------------------

  let last = 0; // number of the last request; answers to older ones are dropped
  let timer = 0;

  function later(milliseconds) {
    clearTimeout(timer);
    timer = setTimeout(ask, milliseconds);
  }

  const known = { name: "", answer: null }; // the translation as trained, reused while alphas change

  // Runs work(number) as the last request, with its errors and the busy state shown.
  async function request(work) {
    clearTimeout(timer);
    const own = ++last;
    busy(true);
    try {
      await work(own);
    } catch (error) {
      if (own === last && !Api.replaced(error)) showError(error);
    } finally {
      if (own === last) busy(false);
    }
  }

  function ask() {
    remember();
    if (!state.text.trim()) {
      last++;
      return show(null);
    }
    return request(async (own) => {
      const question = { text: state.text, beam: state.beam, n_best: Math.min(state.nBest, state.beam) };
      if (continues()) Object.assign(question, { new_tokens: state.tokens, temperature: state.temperature });
      const name = JSON.stringify(question);
      const trained = known.name === name ? known.answer : await Api.translate(question);
      if (own !== last) return;
      Object.assign(known, { name, answer: trained });
      const changed = alphas.size ? await Api.translate({ ...question, alphas: Object.fromEntries(alphas) }) : null;
      if (own === last) await look(own, { trained, changed });
    });
  }

  const continues = () => model.task === "generation";
  const noun = () => (continues() ? "continuation" : "translation");
  const shownAlphas = () => (state.side === "changed" ? Object.fromEntries(alphas) : {});

  // Gets the attention on the chosen translation; the page is updated when all of it has arrived.
  async function look(own, next) {
    if (!next.changed) state.side = "trained";
    const answer = next[state.side] || next.trained;
    state.index = Math.min(state.index, answer.candidates.length - 1);
    const found = await Api.attention({
      text: state.text,
      target_ids: answer.candidates[state.index].ids,
      alphas: shownAlphas(),
    });
    if (own !== last) return;
    outcome = next;
    show(found);
  }

  async function chooseCandidate(side, index) {
    Object.assign(state, { side, index });
    showTranslations();
    await request((own) => look(own, outcome));
  }

  // Gets a head that did not fit into the answer.
  async function fetchHead(key) {
    const shown = sentence;
    try {
      const target = outcome[state.side].candidates[state.index].ids;
      const question = { text: state.text, target_ids: target, heads: [key], alphas: shownAlphas() };
      const found = await Api.oneHead(question);
      if (shown !== sentence) return;
      sentence.heads[key] = found.heads[key];
      heads.refresh(key);
      if (state.key === key) inspect();
    } catch (error) {
      if (!Api.replaced(error)) showError(error);
    }
  }

  function showError(error) {
    at("error").textContent = error instanceof Api.RequestError ? error.message : `Unexpected error: ${error.message}`;
    at("error").hidden = false;
    at("text").setAttribute("aria-invalid", "true");
  }

  function busy(is) {
    document.body.toggleAttribute("data-busy", is);
    if (is) {
      at("error").hidden = true;
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

  function changeAlpha(key, alpha) {
    setAlpha(key, alpha);
    heads.refresh(key);
    changed(MOVING);
  }

  function changeAll(keys, alpha) {
    for (const key of keys) setAlpha(key, alpha);
    changed(0);
  }

  const adjustable = (attnType) =>
    model.heads.filter((head) => head.adjustable && ["all", head.attn_type].includes(attnType)).map(Data.keyOf);

  function resetAll() {
    alphas.clear();
    changed(0);
  }

  // A bar with the translation while the translations themselves are out of sight.
  let translationsSeen = true;
  function showBar() {
    const [before, after] = [outcome.trained, outcome.changed];
    at("bar").hidden = translationsSeen || !after || !alphas.size;
    if (at("bar").hidden) return;
    const [old, now] = [before.candidates[0], after.candidates[0]];
    put(
      "bar",
      el("p", { lang: model.languages[1], class: "translation" }, Words.marked(old.text, now.text, { gone: true })),
      el("span.note", Translations.difference(old, now, noun())),
      button("As trained", resetAll, { class: "quiet" }),
    );
  }

  // The alpha of a head in the translation shown.
  function alphaNow(head) {
    const own = Data.alphaOf(model, head);
    const tested = state.side === "changed" ? alphas.get(Data.keyOf(head)) : undefined;
    return { alpha: tested ?? own, changed: tested !== undefined };
  }

  function noteOf({ head, run, changed: is, rows }) {
    if (!head.adjustable) return `These weights are ${run.normalizers[head.attn_type]}, not α-entmax: there is no α to change.`;
    if (!is) return "Move it, or choose below: the model runs again with this head changed.";
    const density = rows ? Numbers.percent(Data.density(rows)) : "–";
    return `The whole model was run again. Density of this head on this text: ${density}.`;
  }

  // ---- showing ---------------------------------------------------------------------------------------------------------

  function show(found) {
    sentence = found;
    for (const id of ["alignment", "heads"]) at(id).hidden = !sentence;
    at("examples").hidden = !model.examples.length;
    const unknown = sentence?.unknown || [];
    put(
      "notes",
      ...(sentence?.notes || []).map((note) => el("p.note", note)),
      unknown.length &&
        el("p.note", { id: "unknown" }, "Not in the training data: ", unknown.flatMap((word, at) => [at ? ", " : "", el("mark", word)]), "."),
    );
    if (!sentence) outcome = { trained: null, changed: null };
    showTranslations();
    const overrides = alphas.size ? { alphas: Object.fromEntries(alphas) } : {};
    Facts.showCommand({ text: state.text || model.examples[0] || "…", ...overrides });
    at("counted").textContent = sentence
      ? `${(sentence.source.length || outcome.trained.source.length + 1) - 1} subwords of at most ${model.limits.tokens}; ${Math.round(
          (outcome.changed || outcome.trained).milliseconds + sentence.milliseconds,
        )} ms`
      : "";
    if (!sentence) return;
    state.step = Math.min(state.step ?? (continues() ? outcome.trained.source.length - 1 : 0), sentence.steps.length - 1);
    for (const head of model.heads) Object.assign(head, sentence.measures[Data.keyOf(head)]);
    if (state.key === null) open(firstHead(), false);
    changes.show(model, alphas);
    for (const key of keysOf()) heads.refresh(key);
    showAlignment();
    inspect();
  }

  function showTranslations() {
    translations.show({ ...outcome, ...state, language: model.languages[1], noun: noun(), count: alphas.size });
    showBar();
  }

  function showAlignment() {
    state.chosen ??= firstHead();
    alignment.show({ run: model, sentence, chosen: state.chosen, step: state.step });
  }

  const rowsOf = (key) => (sentence ? Data.storedRows(sentence, key) : null);

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
      row: head.attn_type === "encoder" ? undefined : state.step,
      ...alphaNow(head),
      canChange: head.adjustable,
    });
    for (const preset of document.querySelectorAll(".presets button")) {
      preset.disabled = !head.adjustable;
      preset.setAttribute("aria-pressed", Math.abs(alphaNow(head).alpha - Number(preset.dataset.alpha)) < 1e-9);
    }
  }

  // The sparsest cross head, of a model without cross attention the sparsest of all.
  function firstHead() {
    const cross = Data.headsOf(model, "cross");
    const [head] = [...(cross.length ? cross : model.heads)].sort((a, b) => a.density - b.density);
    return Data.keyOf(head);
  }

  function open(key, go) {
    state.key = key;
    heads.choose(key);
    inspect();
    remember();
    if (go) inspector.focus();
  }

  // A target token chosen in one view is chosen in all of them.
  function setStep(step) {
    state.step = step;
    alignment.mark(step);
    if (Data.parseKey(state.key).attnType !== "encoder") inspector.mark(step);
  }

  function chooseAlignment(chosen) {
    state.chosen = chosen;
    showAlignment();
  }

  function repaint() {
    if (!sentence) return;
    heads.show({ run: model, rowsOf, alphaNow, key: state.key });
    showAlignment();
    inspector.repaint();
  }

  // ---- the address -----------------------------------------------------------------------------------------------------

  function remember() {
    const changes = alphas.size ? { alphas: [...alphas].map(([key, alpha]) => `${key}:${alpha}`).join(",") } : {};
    const { text, key, beam, nBest, tokens, temperature } = state;
    const length = continues() ? { tokens, temperature } : {};
    Dom.remember({ text, head: key || "", beam, n: nBest, ...length, ...changes });
  }

  function recall() {
    const chosen = new URLSearchParams(location.hash.slice(1));
    const number = (name, most, usual) => Math.min(Math.max(Math.trunc(Number(chosen.get(name))) || usual, 1), most);
    state.text = (chosen.get("text") ?? model.examples[0] ?? "").slice(0, model.limits.characters);
    state.beam = number("beam", model.limits.beam, model.beam);
    state.nBest = number("n", model.limits.n_best, 3);
    const listed = (name, values, usual) => (values.includes(Number(chosen.get(name) ?? NaN)) ? Number(chosen.get(name)) : usual);
    state.tokens = listed("tokens", Facts.TOKENS, 16);
    state.temperature = listed("temperature", Facts.TEMPERATURES, 0);
    const [lowest, highest] = model.limits.alpha;
    for (const [key, alpha] of Dom.alphasIn(chosen)) {
      const head = Data.findHead(model, key);
      if (head && head.adjustable && alpha >= lowest && alpha <= highest) setAlpha(key, alpha);
    }
    state.key = Data.findHead(model, chosen.get("head") || "") ? chosen.get("head") : null;
    state.side = alphas.size ? "changed" : "trained";
  }

  // ---- starting --------------------------------------------------------------------------------------------------------

  function type(text) {
    at("text").value = text;
    Object.assign(state, { text, index: 0, step: null });
    at("text").focus();
    ask();
  }

  function listen() {
    const text = at("text");
    text.addEventListener("input", () => {
      Object.assign(state, { text: text.value, index: 0, step: null });
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
      ["tokens", "tokens"],
      ["temperature", "temperature"],
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
    } catch (error) {
      return error.status === 503 ? Facts.showMissing(error) : showError(error);
    }
    Facts.show(model, type, (key) => open(key, true));
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
    heads.show({ run: model, rowsOf, alphaNow, key: state.key });
    show(null);
    await ask();
  }

  start();
})();
