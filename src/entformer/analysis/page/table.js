// All heads of a run with all measures, in a table that sorts by any column. The columns are the records of the report.

const HeadTable = (() => {
  "use strict";

  const { el, button } = Dom;
  const order = (head) => Data.ATTENTION_TYPES.indexOf(head.attn_type) * 1e6 + head.layer * 1e3 + head.head;
  const HEAD = { name: "head", title: "Head", text: "attention type.layer.head, counted from 0", value: order };
  const ROLES = {
    name: "roles",
    title: "Head roles",
    text: "ranked by score; click one for an example",
    value: (head) => Math.max(-1, ...head.roles.map((role) => role.score)),
  };

  function columnsFor(run) {
    const measures = run.measures.heads.map((measure) => ({
      ...measure,
      value: (head) => (measure.name === "alpha" ? Data.alphaOf(run, head) : head[measure.name]),
    }));
    const [alphas, others] = [true, false].map((is) => measures.filter(({ format }) => (format === "alpha") === is));
    return [HEAD, ...alphas, ROLES, ...others];
  }

  // onOpen(key), onExample(key, sentence index).
  function create({ onOpen, onExample }) {
    const element = el("div.head-table");
    let run = null;
    let columns = [];
    let sortedBy = "head";
    let descending = false;
    let only = "all";

    function show(next) {
      run = next;
      if (only !== "all" && !Data.attnTypes(run).includes(only)) only = "all";
      // A measure that no head has (alignment without gold links) gets no column.
      columns = columnsFor(run).filter((column) => run.heads.some((head) => !Numbers.missing(column.value(head))));
      render();
    }

    function sorted() {
      const { value } = columns.find((column) => column.name === sortedBy) || columns[0];
      const heads = run.heads.filter((head) => only === "all" || head.attn_type === only);
      const direction = descending ? -1 : 1;
      return heads.sort((a, b) => {
        const [left, right] = [value(a), value(b)];
        if (Numbers.missing(left) || Numbers.missing(right)) return Numbers.missing(left) - Numbers.missing(right); // unknown values last
        return direction * (left - right) || order(a) - order(b);
      });
    }

    function sortBy(column) {
      descending = sortedBy === column.name ? !descending : column !== HEAD && !column.lower_is_better;
      sortedBy = column.name;
      render(column.name);
    }

    function showOnly(attnType) {
      only = attnType;
      render();
    }

    function title(column) {
      const direction = descending ? "descending" : "ascending";
      const sort = column.name === sortedBy ? direction : "none";
      const name = { "data-sort": column.name, title: column.text };
      return el(
        "th",
        { scope: "col", class: column === ROLES ? "roles" : "", "aria-sort": sort },
        button(column.title, () => sortBy(column), name),
      );
    }

    function cell(column, head) {
      const [key, value] = [Data.keyOf(head), column.value(head)];
      if (column === HEAD) return button(key, () => onOpen(key), { class: "bare link" });
      if (column.name === "alpha") return Heads.chip(value, false, "");
      if (column !== ROLES)
        return el("td", { class: Numbers.missing(value) ? "missing" : "" }, Numbers.measure(column, value));
      return el("td.roles", head.roles.length ? Roles.buttons(head, (example) => onExample(key, example)) : "");
    }

    function render(focused) {
      const scrolled = element.querySelector(".scroll")?.scrollLeft ?? 0;
      const types = ["all", ...Data.attnTypes(run)];
      const rows = sorted().map((head) => ({
        "data-key": Data.keyOf(head),
        cells: columns.map((column) => cell(column, head)),
      }));
      element.replaceChildren(
        el(
          "div",
          { class: "choice", role: "group", "aria-label": "Which heads" },
          types.map((one) => button(one, () => showOnly(one), { "aria-pressed": only === one })),
        ),
        Dom.scroll("Table of heads", Dom.table({ caption: "All heads with their measures", titles: columns.map(title), rows })),
      );
      element.querySelector(".scroll").scrollLeft = scrolled;
      if (focused) element.querySelector(`[data-sort="${focused}"]`).focus({ preventScroll: true });
    }

    return { element, show };
  }

  return { create };
})();
