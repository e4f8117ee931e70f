// Changed alphas: a chip each, buttons to undo one or all, and to change all heads at once.

const Changes = (() => {
  "use strict";

  const { el, button } = Dom;
  const SHOWN = 8; // chips; of more only the number is shown
  const NAMED = { encoder: "encoder heads", decoder: "decoder heads", cross: "cross heads" };
  const PRESETS = [
    [1, "softmax"],
    [1.5, "1.5-entmax"],
    [2, "sparsemax"],
  ];

  // onOpen(key), onRemove(keys), onReset(), onAll(attnType or "all", alpha)
  function create({ onOpen, onRemove, onReset, onAll }) {
    const attnType = el("select", { id: "change-type", "aria-label": "Which heads to change" });
    const list = el("div", { class: "changed-heads", role: "group", "aria-label": "Changed heads" });
    const reset = button("As trained", onReset, { class: "quiet", id: "reset-all" });
    const element = el(
      "div.changes",
      el(
        "div.flow.all-heads",
        el("span", "What if"),
        attnType,
        el("span", "were"),
        PRESETS.map(([alpha, name]) =>
          button(name, () => onAll(attnType.value, alpha), { class: "quiet", "data-all": alpha }),
        ),
        reset,
      ),
      list,
    );

    function fill(run) {
      const adjustable = Data.attnTypes(run).filter((one) => Data.headsOf(run, one).some((head) => head.adjustable));
      attnType.replaceChildren(
        el("option", { value: "all" }, "all heads"),
        ...adjustable.map((one) => el("option", { value: one }, NAMED[one])),
      );
      element.hidden = !adjustable.length;
    }

    // alphas: Map of key -> alpha
    function show(run, alphas) {
      if (!attnType.children.length) fill(run);
      reset.disabled = !alphas.size;
      const whole = Data.attnTypes(run).map((one) => sameForAll(run, one, alphas)).filter(Boolean);
      const covered = new Set(whole.flatMap(({ keys }) => keys));
      const single = [...alphas].filter(([key]) => !covered.has(key));
      const chips = whole.map(({ name, keys, alpha }) => chip(el("span", name), `α ${Numbers.alpha(alpha)}`, name, keys));
      for (const [key, alpha] of single.slice(0, SHOWN)) {
        const own = Data.alphaOf(run, Data.findHead(run, key));
        const name = button(el("code", key), () => onOpen(key), { class: "bare name", title: "Show this head" });
        chips.push(chip(name, `α ${Numbers.alpha(own)} → ${Numbers.alpha(alpha)}`, key, [key]));
      }
      if (single.length > SHOWN) chips.push(el("span.note", `and ${single.length - SHOWN} more`));
      list.replaceChildren(...chips);
      list.hidden = !alphas.size;
    }

    // All adjustable heads of one attention type have the same alpha: one chip is enough.
    function sameForAll(run, one, alphas) {
      const keys = Data.headsOf(run, one)
        .filter((head) => head.adjustable)
        .map(Data.keyOf);
      const alpha = alphas.get(keys[0]);
      const same = keys.length > 1 && alpha !== undefined && keys.every((key) => alphas.get(key) === alpha);
      return same ? { name: `all ${keys.length} ${NAMED[one]}`, keys, alpha } : null;
    }

    function chip(name, text, spoken, keys) {
      const undo = button("×", () => onRemove(keys), { class: "bare undo", "aria-label": `Undo the change of ${spoken}` });
      return el("span", { class: "change", "data-keys": keys.join(" ") }, name, ` ${text} `, undo);
    }

    return { element, show };
  }

  return { create, PRESETS };
})();
