// The n best translations or continuations: as trained, and beside it with changed alphas, differences marked.

const Translations = (() => {
  "use strict";

  const { el } = Dom;

  // onChoose(side, index): show the heads on this translation.
  function create({ onChoose }) {
    const element = el("div.outcomes");

    // {trained, changed: answers or null, side, index, language, noun: what they are called, count: heads changed}
    function show(content) {
      const { trained, changed } = content;
      element.replaceChildren(
        ...(trained ? [] : [el("p.note", "Nothing yet: type above, or choose an example.")]),
        ...(trained ? [card("trained", "As trained", trained, content)] : []),
        ...(changed ? [card("changed", `With ${content.count === 1 ? "one" : content.count} α changed`, changed, content)] : []),
      );
      element.classList.toggle("two", Boolean(changed));
    }

    function card(side, title, answer, content) {
      const before = side === "changed" && content.trained ? content.trained.candidates : null;
      const list = el("ol.candidates");
      answer.candidates.forEach((candidate, index) => {
        const text = before ? Words.marked(before[0].text, candidate.text, { gone: index === 0 }) : [candidate.text];
        list.append(
          el(
            "li",
            Dom.button(
              [
                el("span", { class: "translation", lang: content.language, dir: "auto" }, text.length && candidate.text ? text : "(empty)"),
                el("small", { title: "mean log-probability of a token" }, score(candidate, content.noun)),
              ],
              () => onChoose(side, index),
              {
                class: index ? "bare candidate" : "bare candidate best",
                "aria-pressed": content.side === side && content.index === index,
                "data-side": side,
                "data-index": index,
                title: `Show the heads on this ${content.noun}`,
              },
            ),
          ),
        );
      });
      return el(
        "section",
        { class: "outcome", "data-side": side, "aria-label": title },
        el("h3", title, el("small", "log-probability per token")),
        list,
        before && el("p.difference", difference(before[0], answer.candidates[0], content.noun)),
      );
    }

    // A translation has an end, a continuation seldom.
    const score = ({ score: value, finished }, noun) => {
      const unusual = noun === "translation" ? !finished && ", cut" : finished && ", ends";
      return `${Numbers.fixed(value, 3).replace("-", "−")}${unusual || ""}`;
    };

    return { element, show };
  }

  function difference(before, after, noun) {
    if (before.text !== after.text) return `The ${noun} changes.`;
    if (before.score === null || after.score === null) return `The ${noun} stays the same.`;
    const gain = after.score - before.score;
    if (Math.abs(gain) < 0.0005) return `The ${noun} and its score stay the same.`;
    return `The ${noun} stays the same; its probability is ${gain > 0 ? "higher" : "lower"}.`;
  }

  return { create, difference };
})();
