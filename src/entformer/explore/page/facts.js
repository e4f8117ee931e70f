// What the page tells about the model: languages, sizes, limits, examples, and the request as a command.

const Facts = (() => {
  "use strict";

  const { el, button, at, put } = Dom;

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
    if (model.task === "generation") nameContinuations();
    else {
      const [from, to] = model.languages.map(languageName);
      at("from").textContent = `${from} sentence, to ${to}${model.lowercase ? " (lower-cased)" : ""}`;
      at("text").lang = model.languages[0];
      parts.unshift(`${from} to ${to}`);
      parts.push(`step ${Numbers.count(model.step)}`);
    }
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
  }

  // A model that continues text: the same page in other words.
  function nameContinuations() {
    at("from").textContent = "Text";
    at("go").textContent = "Continue";
    at("n-best").parentElement.firstChild.textContent = "Continuations ";
    at("alignment-title").textContent = "What each token attends to, and what comes next";
    at("alignment").querySelector(".lead").textContent =
      "Attention of one head, a layer, or all of them, to earlier tokens, and the distribution of the next token.";
  }

  function showCommand(body) {
    if (!at("curl")) return; // a page without a server
    const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
    const address = new URL("api/attention", document.baseURI).href;
    at("curl").textContent = `curl -s ${address} \\\n  -H 'Content-Type: application/json' \\\n  -d '${quoted}'`;
  }

  return { show, showCommand };
})();
