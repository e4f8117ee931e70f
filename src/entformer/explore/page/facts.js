// What the page tells about the model: languages, sizes, limits, examples, and the request as a command.

const Facts = (() => {
  "use strict";

  const { el, button, at, put } = Dom;
  const TOKENS = [8, 16, 32, 64, 128, 256]; // of a continuation
  const TEMPERATURES = [0, 0.3, 0.6, 0.8, 1, 1.2];

  function languageName(code) {
    try {
      return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
    } catch {
      return code;
    }
  }

  // onExample(text): an example sentence was chosen; onHead(key): a head was.
  function show(model, onExample, onHead) {
    const normalizers = [...new Set(Object.values(model.normalizers))].join(", ");
    const parts = [`${model.heads.length} heads (${normalizers})`, `${Numbers.count(model.parameters)} parameters`];
    if (model.task === "generation") {
      for (const node of document.querySelectorAll("[data-continuing]")) node.textContent = node.dataset.continuing;
      for (const node of document.querySelectorAll(".continuing")) node.hidden = false;
    } else {
      const [from, to] = model.languages.map(languageName);
      at("from").textContent = `${from} sentence, to ${to}${model.lowercase ? " (lower-cased)" : ""}`;
      at("text").lang = model.languages[0];
      parts.unshift(`${from} to ${to}`);
    }
    if (model.step) parts.push(`step ${Numbers.count(model.step)}`);
    at("facts").textContent = [...parts, `entformer ${model.entformer}`].join(", ");
    at("knows").textContent = model.training_text || "";
    at("knows").hidden = !model.training_text;
    at("text").maxLength = model.limits.characters;
    put(
      "examples",
      el("span.note", "Examples"),
      ...model.examples.map((text) =>
        button(text, () => onExample(text), { class: "quiet example", lang: model.languages[0] }),
      ),
    );
    const small = AlphaPaths.small(model, onHead);
    at("alpha-sentence").textContent = model.alpha_sentence || "";
    put("small-paths", small);
    at("learned").hidden = !small && !model.alpha_sentence;
    const numbers = (most) => Array.from({ length: most }, (_, index) => el("option", { value: index + 1 }, index + 1));
    put("beam", ...numbers(model.limits.beam));
    put("n-best", ...numbers(model.limits.n_best));
    put("tokens", ...TOKENS.map((value) => el("option", { value }, value)));
    put("temperature", ...TEMPERATURES.map((value) => el("option", { value }, value || "0: most probable")));
  }

  function showCommand(body) {
    if (!at("curl")) return; // a page without a server
    const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
    const address = new URL("api/attention", document.baseURI).href;
    at("curl").textContent = `curl -s ${address} \\\n  -H 'Content-Type: application/json' \\\n  -d '${quoted}'`;
  }

  // A run without a checkpoint: the page begins with its training, and there is nothing to send a text to.
  function showMissing(error) {
    put("notes", el("p.note", { id: "no-model" }, error.message));
    for (const field of at("ask").elements) field.disabled = true;
    at("translate").before(at("training"));
  }

  return { show, showMissing, showCommand, TOKENS, TEMPERATURES };
})();
