// The page of long-context sweeps: reads the data, keeps the selection, and draws every sweep.

(() => {
  "use strict";

  const { el, button, at, put } = Dom;
  const report = JSON.parse(at("entformer-data").textContent);
  const sweeps = report.sweeps || [];
  const unique = (values) => [...new Set(values)];
  const every = (name) => unique(sweeps.flatMap((sweep) => sweep.series.map((series) => series[name])));
  const methods = every("method");
  const positions = every("positions");
  const METRICS = { token_accuracy: "token accuracy", exact_match: "exact match" };
  const HEADS = { all: "all", free: "without ALiBi" };
  const state = { methods: new Set(methods), positions: new Set(positions), metric: "token_accuracy", heads: "all" };
  const manyPositions = positions.length > 1;

  const color = (series) => Colors.run(methods.indexOf(series.method));
  const hollow = (series) => Colors.runRepeats(methods.indexOf(series.method));
  const dash = (series) => Colors.dash(positions.indexOf(series.positions));
  const name = (series) => (manyPositions ? `${series.method}, ${series.positions}` : series.method);
  const visible = (sweep) => sweep.series.filter((one) => state.methods.has(one.method) && state.positions.has(one.positions));
  const metricOf = (sweep) => (sweep.one_answer ? "token_accuracy" : state.metric);
  const titleOf = (sweep) => (sweep.one_answer ? "accuracy" : METRICS[state.metric]);
  const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

  // ---- switches ----------------------------------------------------------------------------------------------------------

  function toggles(legend, names, chosen, drawn) {
    if (names.length < 2) return null;
    return el(
      "fieldset.flow",
      el("legend", legend),
      names.map((one) => {
        const toggle = (event) => {
          if (!chosen.delete(one)) chosen.add(one);
          event.currentTarget.setAttribute("aria-pressed", chosen.has(one));
          showSweeps();
        };
        return button([drawn(one), one], toggle, { class: "quiet series", "aria-pressed": chosen.has(one) });
      }),
    );
  }

  function choice(legend, options, key) {
    const choose = (value) => {
      state[key] = value;
      showSwitches();
      showSweeps();
      at("switches").querySelector(`[data-key="${key}"] [aria-pressed="true"]`).focus();
    };
    const buttons = Object.entries(options).map(([value, text]) =>
      button(text, () => choose(value), { "aria-pressed": state[key] === value }),
    );
    return el("fieldset.flow", { "data-key": key }, el("legend", legend), el("span.choice", buttons));
  }

  function showSwitches() {
    put(
      "switches",
      toggles("Methods", methods, state.methods, (one) => Curves.sample(color({ method: one }), "none", hollow({ method: one }))),
      toggles("Positions", positions, state.positions, (one) =>
        Curves.sample(Colors.token("--ink"), Colors.dash(positions.indexOf(one))),
      ),
      sweeps.some((sweep) => !sweep.one_answer) && choice("Measure", METRICS, "metric"),
      positions.some((one) => one.startsWith("nape")) && choice("Heads", HEADS, "heads"),
    );
  }

  // ---- one sweep ----------------------------------------------------------------------------------------------------------

  const accuracy = (percent) => Numbers.fixed(percent, 1, [0, 100]);
  const spreadText = (found) => (found.values.length > 1 ? ` ± ${Numbers.fixed(found.spread, 1)}` : "");
  const meanCell = (found) => [accuracy(found.mean), el("small", spreadText(found))];

  const cell = (one, length, metric) => one.points.find((point) => point.length === length)?.[metric];

  function lines(sweep, pick) {
    return visible(sweep).map((one) => ({
      name: name(one),
      color: color(one),
      hollow: hollow(one),
      dash: dash(one),
      points: one.points.filter((point) => pick(point)).map((point) => ({ length: point.length, ...pick(point) })),
    }));
  }

  // The values at the length under the pointer, best first.
  function values(sweep, length) {
    const metric = metricOf(sweep);
    const rows = visible(sweep)
      .map((one) => ({ one, found: cell(one, length, metric) }))
      .filter(({ found }) => found)
      .sort((a, b) => b.found.mean - a.found.mean);
    const times = Number((length / sweep.train_length).toFixed(2));
    return el(
      "div",
      { class: "values", "aria-live": "polite" },
      el("h4", `Length ${length.toLocaleString("en")}`, el("small", `${times}× · ${titleOf(sweep)}, %`)),
      Dom.table({
        rows: rows.map(({ one, found }) => ({
          cells: [[Curves.sample(color(one), dash(one), hollow(one)), name(one)], meanCell(found)],
        })),
      }),
      rows.length ? null : el("p.note", "Nothing is selected."),
    );
  }

  function table(sweep) {
    const metric = metricOf(sweep);
    const shown = visible(sweep);
    const meanAt = (one, length) => cell(one, length, metric)?.mean ?? -1;
    const best = new Map(sweep.lengths.map((length) => [length, Math.max(...shown.map((one) => meanAt(one, length)))]));
    const order = sweep.lengths.reduce((all, length) => all.sort((a, b) => meanAt(b, length) - meanAt(a, length)), [...shown]);
    const mean = (one, length) => {
      const found = cell(one, length, metric);
      if (!found) return "–";
      const first = found.mean.toFixed(1) === best.get(length).toFixed(1);
      const classes = [length <= sweep.train_length && "inside", first && "best"].filter(Boolean).join(" ");
      return el("td", { class: classes }, meanCell(found));
    };
    const rows = order.map((one) => ({
      cells: [
        el("th", { scope: "row", title: one.about }, one.method),
        el("th", one.positions),
        ...sweep.lengths.map((length) => mean(one, length)),
        `${one.seeds.length}${one.diverged ? ` (${one.diverged} diverged)` : ""}`,
      ],
    }));
    return el(
      "div.means",
      el("h3", `${capital(titleOf(sweep))}, %: mean ± deviation over seeds`),
      Dom.scroll(
        `${sweep.task}: table of ${titleOf(sweep)}`,
        Dom.table({ titles: ["method", "positions", ...sweep.lengths, "seeds"], rows }),
      ),
      el("p.note.hint", "Shaded: lengths seen in training. Bold: the best mean. A run that diverged counts as 0."),
    );
  }

  function settings(sweep) {
    const text = (value) => (value === null ? "–" : Array.isArray(value) ? value.join(", ") : String(value));
    return el(
      "details.settings",
      el("summary", "Command and settings"),
      el("pre", sweep.command),
      Dom.table({ rows: Object.entries(sweep.settings).map(([key, value]) => ({ cells: [key, text(value)] })) }),
    );
  }

  function learned(sweep) {
    const scaled = visible(sweep).filter((one) => one.learned.length);
    if (!scaled.length) return null;
    const longest = Math.max(...scaled.flatMap((one) => one.learned.map(({ length }) => length)));
    const dots = scaled.map((one) => ({ name: name(one), color: color(one), learned: one.learned }));
    const charts = ["beta", "gamma", "scale"].map((what) => Scaling.draw(dots, what, longest)).filter(Boolean);
    return el(
      "div",
      el("p.lead", `What scaled heads learned: a dot per head and seed, the mean over tokens at length ${longest}.`),
      el("div.curve-row", charts),
    );
  }

  function sweep(one) {
    const heads = state.heads;
    const reading = el("div");
    const read = (length) => {
      for (const chart of charts) chart.mark(length);
      reading.replaceChildren(values(one, length));
    };
    const shared = { lengths: one.lengths, trained: one.train_length, onRead: read };
    const metric = metricOf(one);
    const large = Curves.draw({
      ...shared,
      series: lines(one, (point) => point[metric]),
      title: capital(titleOf(one)),
      percent: true,
      large: true,
    });
    const attention = [
      ["entropy", "Attention entropy / ln n", false],
      ["support", "Keys with nonzero weight", true],
      ["top", "Largest weight", false],
    ].map(([what, title, log]) => Curves.draw({ ...shared, series: lines(one, (point) => point[what][heads]), title, log }));
    const charts = [large, ...attention];
    const runs = one.series.reduce((sum, series) => sum + series.seeds.length, 0);
    const section = el(
      "section",
      { class: "sweep", id: `sweep-${one.name}`, "aria-labelledby": `sweep-${one.name}-title` },
      el("h2", { id: `sweep-${one.name}-title` }, capital(one.task)),
      el("p.lead", one.about),
      el("p.facts", `Trained up to length ${one.train_length}; ${one.sequences} sequences at each length; ${runs} runs.`),
      el("div.curves", large.element, reading),
      el("div.curve-row", attention.map((chart) => chart.element)),
      table(one),
      learned(one),
      settings(one),
    );
    const beyond = one.lengths.find((length) => length >= 2 * one.train_length) ?? one.lengths.at(-1);
    read(beyond);
    return section;
  }

  function showSweeps() {
    // Open details stay open.
    const open = [...document.querySelectorAll(".sweep details[open]")].map((node) => node.closest(".sweep").id);
    put("sweeps", ...sweeps.map(sweep));
    for (const id of open) at(id).querySelector("details").open = true;
  }

  function start() {
    at("title").textContent = report.title;
    at("made").textContent = `entformer ${report.entformer}, ${report.created}`;
    put(
      "parts",
      ...sweeps.map((one) => el("a", { href: `#sweep-${one.name}` }, capital(one.task))),
      el("a", { href: "#setup" }, "Glossary"),
    );
    const paint = () => {
      showSwitches();
      showSweeps();
    };
    Theme.start(at("theme"), paint);
    paint();
  }

  start();
})();
