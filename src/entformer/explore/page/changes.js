// The alphas that are tried out: a chip each, to take back one or all, and a way to change every head at once.

const Changes = (() => {
  "use strict";

  const { el } = Dom;
  const SHOWN = 8; // chips; of more only their number is said
  const NAMED = { encoder: "encoder heads", decoder: "decoder heads", cross: "cross heads" };
  const PRESETS = [
    [1, "softmax"],
    [1.5, "1.5-entmax"],
    [2, "sparsemax"],
  ];

  // onOpen(key), onRemove(keys), onReset(), onAll(kind or "all", alpha)
  function create({ onOpen, onRemove, onReset, onAll }) {
    const kind = el("select", { id: "change-kind", "aria-label": "Which heads to change" });
    const list = el("div", { class: "changed-heads", role: "group", "aria-label": "Changed heads" });
    const reset = el("button", { type: "button", class: "quiet", id: "reset-all", onclick: onReset }, "As trained");
    const element = el(
      "div",
      { class: "changes" },
      el(
        "div",
        { class: "everyone" },
        el("span", {}, "What if"),
        kind,
        el("span", {}, "were"),
        PRESETS.map(([alpha, name]) =>
          el(
            "button",
            { type: "button", class: "quiet", "data-all": alpha, onclick: () => onAll(kind.value, alpha) },
            name,
          ),
        ),
        reset,
      ),
      list,
    );

    function fill(run) {
      const adjustable = Data.kindsOf(run).filter((one) => Data.headsOf(run, one).some((head) => head.adjustable));
      kind.replaceChildren(
        el("option", { value: "all" }, "all heads"),
        ...adjustable.map((one) => el("option", { value: one }, NAMED[one])),
      );
      element.hidden = !adjustable.length;
    }

    // alphas: Map of key -> alpha
    function show(run, alphas) {
      if (!kind.children.length) fill(run);
      reset.disabled = !alphas.size;
      const whole = Data.kindsOf(run).map((one) => sameForAll(run, one, alphas)).filter(Boolean);
      const covered = new Set(whole.flatMap(({ keys }) => keys));
      const single = [...alphas].filter(([key]) => !covered.has(key));
      const chips = whole.map(({ name, keys, alpha }) => chip(el("span", {}, name), `α ${Numbers.alpha(alpha)}`, name, keys));
      for (const [key, alpha] of single.slice(0, SHOWN)) {
        const own = Data.alphaOf(run, Data.findHead(run, key));
        const name = el("button", { type: "button", class: "name", title: "Show this head", onclick: () => onOpen(key) });
        name.append(el("code", {}, key));
        chips.push(chip(name, `α ${Numbers.alpha(own)} → ${Numbers.alpha(alpha)}`, key, [key]));
      }
      if (single.length > SHOWN) chips.push(el("span", { class: "note" }, `and ${single.length - SHOWN} more`));
      list.replaceChildren(...chips);
      list.hidden = !alphas.size;
    }

    // All heads of a kind that can be changed have one alpha: a single chip says so.
    function sameForAll(run, one, alphas) {
      const keys = Data.headsOf(run, one)
        .filter((head) => head.adjustable)
        .map(Data.keyOf);
      const alpha = alphas.get(keys[0]);
      const same = keys.length > 1 && alpha !== undefined && keys.every((key) => alphas.get(key) === alpha);
      return same ? { name: `all ${keys.length} ${NAMED[one]}`, keys, alpha } : null;
    }

    function chip(name, text, spoken, keys) {
      const away = el("button", { type: "button", class: "away", "aria-label": `Take back the change of ${spoken}` }, "×");
      away.addEventListener("click", () => onRemove(keys));
      return el("span", { class: "change", "data-keys": keys.join(" ") }, name, ` ${text} `, away);
    }

    return { element, show };
  }

  return { create, PRESETS };
})();
