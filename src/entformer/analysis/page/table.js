// All heads of a run with all measures, in a table that sorts by any column.

const HeadTable = (() => {
  "use strict";

  const { el } = Dom;
  const offset = (name) => (head) => (head.positional || {})[name];

  const columnsFor = (run) => [
    {
      id: "head",
      text: "Head",
      title: "kind.layer.head, counted from 0 as in Python",
      value: (head) => orderOf(head),
      show: (head) => Data.keyOf(head),
    },
    {
      id: "alpha",
      text: "α",
      title: "learned, or fixed by the normalizer",
      value: (head) => Data.alphaOf(run, head),
      chip: true,
    },
    {
      id: "alpha_initial",
      text: "α before",
      title: "α before the first update",
      value: (head) => head.alpha_initial,
      form: Numbers.alpha,
    },
    {
      id: "roles",
      text: "Found roles",
      title: "ranked by score; click one for an example",
      value: (head) => Math.max(-1, ...(head.roles || []).map((role) => role.score)),
      roles: true,
    },
    {
      id: "density",
      text: "Density",
      title: "mean share of the visible keys that get weight",
      value: (head) => head.density,
      form: Numbers.percent,
    },
    {
      id: "support",
      text: "Keys",
      title: "mean number of keys with weight",
      value: (head) => head.support,
      form: (value) => Numbers.fixed(value, 1),
    },
    {
      id: "effective_keys",
      text: "Effective",
      title: "effective number of keys: mean of exp(entropy)",
      value: (head) => head.effective_keys,
      form: (value) => Numbers.fixed(value, 1),
    },
    {
      id: "entropy",
      text: "Entropy",
      title: "mean entropy of a row, in nats",
      value: (head) => head.entropy,
      form: Numbers.fixed,
    },
    {
      id: "null_rate",
      text: "Null",
      title: "share of rows without any weight",
      value: (head) => head.null_rate,
      form: Numbers.percent,
    },
    { id: "previous", text: "−1", title: "median confidence on the previous token", value: offset("-1"), form: Numbers.percent },
    { id: "itself", text: "0", title: "median confidence on the token itself", value: offset("0"), form: Numbers.percent },
    { id: "next", text: "+1", title: "median confidence on the next token", value: offset("1"), form: Numbers.percent },
    {
      id: "first_key",
      text: "First",
      title: "median weight on the first key",
      value: (head) => head.first_key,
      form: Numbers.percent,
    },
    {
      id: "last_key",
      text: "Last",
      title: "median weight on the last key",
      value: (head) => head.last_key,
      form: Numbers.percent,
    },
    {
      id: "merging",
      text: "Merging",
      title: "mass inside the pieces of one word",
      value: (head) => head.merging,
      form: Numbers.percent,
    },
    {
      id: "merging_pieces",
      text: "Merging 2+",
      title: "the same, over words of two and more pieces only",
      value: (head) => head.merging_pieces,
      form: Numbers.percent,
    },
    {
      id: "merging_with_self",
      text: "with self",
      title: "mass on all pieces of the word, the query's own included; words of two and more pieces",
      value: (head) => head.merging_with_self,
      form: Numbers.percent,
    },
    {
      id: "interrogation",
      text: "Question",
      title: "mean weight on the question mark from an interrogative word",
      value: (head) => head.interrogation,
      form: Numbers.percent,
    },
    {
      id: "interrogation_contrast",
      text: "Statement",
      title: "the same words with a full stop in place of the question mark: mean weight on the full stop",
      value: (head) => head.interrogation_contrast,
      form: Numbers.percent,
    },
    {
      id: "aer",
      text: "AER",
      title: "alignment error rate, row i; lower is better",
      value: (head) => head.aer,
      form: Numbers.percent,
    },
    {
      id: "aer_shifted",
      text: "AER +1",
      title: "alignment error rate, row i + 1; lower is better",
      value: (head) => head.aer_shifted,
      form: Numbers.percent,
    },
    {
      id: "density_spread",
      text: "Spread",
      title: "density in the densest less the sparsest of sentences of similar length",
      value: (head) => head.density_spread,
      form: Numbers.percent,
    },
  ];
  const orderOf = (head) => Data.KINDS.indexOf(head.kind) * 1e6 + head.layer * 1e3 + head.head;

  // onOpen(key), onExample(key, sentence index).
  function create({ onOpen, onExample }) {
    const element = el("div", { class: "head-table" });
    let run = null;
    let columns = [];
    let sortedBy = "head";
    let descending = false;
    let only = "all";

    function show(next) {
      run = next;
      if (only !== "all" && !Data.kindsOf(run).includes(only)) only = "all";
      // A measure that no head has (alignment without gold links) gets no column.
      columns = columnsFor(run).filter((column) => run.heads.some((head) => !Numbers.missing(column.value(head))));
      render();
    }

    function sorted() {
      const { value } = columns.find((column) => column.id === sortedBy) || columns[0];
      const heads = run.heads.filter((head) => only === "all" || head.kind === only);
      const direction = descending ? -1 : 1;
      return heads.sort((a, b) => {
        const [left, right] = [value(a), value(b)];
        if (Numbers.missing(left) || Numbers.missing(right)) return Numbers.missing(left) - Numbers.missing(right); // unknown values last
        return direction * (left - right) || orderOf(a) - orderOf(b);
      });
    }

    function sortBy(id) {
      descending = sortedBy === id ? !descending : id !== "head" && !id.startsWith("aer");
      sortedBy = id;
      render(id);
    }

    function render(focused) {
      const heads = sorted();
      const filters = el(
        "div",
        { class: "choice", role: "group", "aria-label": "Which heads" },
        ["all", ...Data.kindsOf(run)].map((kind) =>
          el(
            "button",
            {
              type: "button",
              "aria-pressed": only === kind,
              onclick: () => {
                only = kind;
                render();
              },
            },
            kind,
          ),
        ),
      );
      const header = el(
        "tr",
        {},
        columns.map((column) =>
          el(
            "th",
            {
              scope: "col",
              class: column.roles ? "roles" : "",
              "aria-sort": column.id === sortedBy ? (descending ? "descending" : "ascending") : "none",
            },
            el(
              "button",
              { type: "button", "data-sort": column.id, title: column.title, onclick: () => sortBy(column.id) },
              column.text,
            ),
          ),
        ),
      );
      const table = el(
        "table",
        {},
        el("caption", { class: "unseen" }, "All heads with their measures"),
        el("thead", {}, header),
        el("tbody", {}, heads.map(line)),
      );
      const scroll = element.querySelector(".scroll");
      const left = scroll ? scroll.scrollLeft : 0;
      element.replaceChildren(
        filters,
        el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of heads" }, table),
      );
      element.querySelector(".scroll").scrollLeft = left;
      if (focused) element.querySelector(`[data-sort="${focused}"]`).focus({ preventScroll: true });
    }

    function line(head) {
      const key = Data.keyOf(head);
      return el(
        "tr",
        { "data-key": key },
        columns.map((column) => cell(column, head, key)),
      );
    }

    function cell(column, head, key) {
      if (column.id === "head") {
        return el("th", { scope: "row" }, el("button", { type: "button", class: "link", onclick: () => onOpen(key) }, key));
      }
      if (column.chip) return el("td", {}, Heads.chip(column.value(head), false, ""));
      if (column.roles) {
        return el(
          "td",
          { class: "roles" },
          (head.roles || []).length ? Inspector.roleButtons(head, (example) => onExample(key, example)) : "",
        );
      }
      const value = column.value(head);
      return el("td", { class: Numbers.missing(value) ? "missing" : "" }, column.form(value));
    }

    return { element, show };
  }

  return { create };
})();
