// The page of long-context races: reads the data, keeps what is switched on, and draws every race.

(() => {
  "use strict";

  const { el } = Dom;
  const at = (id) => document.getElementById(id);
  const report = JSON.parse(at("entformer-data").textContent);
  const races = report.races || [];
  const unique = (values) => [...new Set(values)];
  const every = (name) => unique(races.flatMap((race) => race.series.map((series) => series[name])));
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
  const visible = (race) => race.series.filter((one) => state.methods.has(one.method) && state.positions.has(one.positions));
  const metricOf = (race) => (race.one_answer ? "token_accuracy" : state.metric);
  const titleOf = (race) => (race.one_answer ? "accuracy" : METRICS[state.metric]);
  const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

  // ---- switches ----------------------------------------------------------------------------------------------------------

  function toggles(legend, names, chosen, drawn) {
    if (names.length < 2) return null;
    return el(
      "fieldset",
      {},
      el("legend", {}, legend),
      names.map((one) =>
        el(
          "button",
          {
            type: "button",
            class: "series",
            "aria-pressed": chosen.has(one),
            onclick: (event) => {
              if (chosen.has(one)) chosen.delete(one);
              else chosen.add(one);
              event.currentTarget.setAttribute("aria-pressed", chosen.has(one));
              showRaces();
            },
          },
          drawn(one),
          one,
        ),
      ),
    );
  }

  function choice(legend, options, key) {
    const buttons = Object.entries(options).map(([value, text]) =>
      el(
        "button",
        {
          type: "button",
          "aria-pressed": state[key] === value,
          onclick: () => {
            state[key] = value;
            showSwitches();
            showRaces();
            at("switches").querySelector(`[data-key="${key}"] [aria-pressed="true"]`).focus();
          },
        },
        text,
      ),
    );
    return el("fieldset", { "data-key": key }, el("legend", {}, legend), el("span", { class: "choice" }, buttons));
  }

  function showSwitches() {
    const parts = [
      toggles("Methods", methods, state.methods, (one) => Curves.sample(color({ method: one }), "none", hollow({ method: one }))),
      toggles("Positions", positions, state.positions, (one) =>
        Curves.sample(Colors.token("--ink"), Colors.dash(positions.indexOf(one))),
      ),
      races.some((race) => !race.one_answer) && choice("Measure", METRICS, "metric"),
      positions.some((one) => one.startsWith("nape")) && choice("Heads", HEADS, "heads"),
    ];
    at("switches").replaceChildren(...parts.filter(Boolean));
  }

  // ---- one race ----------------------------------------------------------------------------------------------------------

  const accuracy = (percent) => Numbers.fixed(percent, 1, [0, 100]);
  const spreadText = (found) => (found.values.length > 1 ? ` ± ${Numbers.fixed(found.spread, 1)}` : "");

  function lines(race, pick) {
    return visible(race).map((one) => ({
      name: name(one),
      color: color(one),
      hollow: hollow(one),
      dash: dash(one),
      points: one.points.filter((point) => pick(point)).map((point) => ({ length: point.length, ...pick(point) })),
    }));
  }

  // The values at the length under the pointer, best first.
  function values(race, length) {
    const metric = metricOf(race);
    const rows = visible(race)
      .map((one) => ({ one, found: (one.points.find((point) => point.length === length) || {})[metric] }))
      .filter(({ found }) => found)
      .sort((a, b) => b.found.mean - a.found.mean);
    const times = Number((length / race.train_length).toFixed(2));
    return el(
      "div",
      { class: "values", "aria-live": "polite" },
      el("h4", {}, `Length ${length.toLocaleString("en")}`, el("small", {}, `${times}× · ${titleOf(race)}, %`)),
      el(
        "table",
        {},
        el(
          "tbody",
          {},
          rows.map(({ one, found }) =>
            el(
              "tr",
              {},
              el("th", { scope: "row" }, Curves.sample(color(one), dash(one), hollow(one)), name(one)),
              el("td", {}, accuracy(found.mean), el("small", {}, spreadText(found))),
            ),
          ),
        ),
      ),
      rows.length ? null : el("p", { class: "note" }, "Nothing is switched on."),
    );
  }

  function table(race) {
    const metric = metricOf(race);
    const shown = visible(race);
    const cell = (one, length) => (one.points.find((point) => point.length === length) || {})[metric];
    const best = new Map(
      race.lengths.map((length) => [length, Math.max(...shown.map((one) => (cell(one, length) || { mean: -1 }).mean))]),
    );
    const order = [...shown].sort((a, b) => {
      for (const length of [...race.lengths].reverse()) {
        const [left, right] = [a, b].map((one) => (cell(one, length) || { mean: -1 }).mean);
        if (left !== right) return right - left;
      }
      return 0;
    });
    const row = (one) =>
      el(
        "tr",
        {},
        el("th", { scope: "row", title: one.about }, one.method),
        el("th", {}, one.positions),
        race.lengths.map((length) => {
          const found = cell(one, length);
          if (!found) return el("td", {}, "–");
          const first = found.mean.toFixed(1) === best.get(length).toFixed(1);
          const kind = [length <= race.train_length && "inside", first && "best"].filter(Boolean).join(" ");
          return el("td", { class: kind }, accuracy(found.mean), el("small", {}, spreadText(found)));
        }),
        el("td", {}, `${one.seeds.length}${one.diverged ? ` (${one.diverged} diverged)` : ""}`),
      );
    return el(
      "div",
      { class: "means" },
      el("h3", {}, `${capital(titleOf(race))}, %: mean ± deviation over seeds`),
      el(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": `${race.task}: table of ${titleOf(race)}` },
        el(
          "table",
          {},
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              ["method", "positions", ...race.lengths, "seeds"].map((text) => el("th", { scope: "col" }, text)),
            ),
          ),
          el("tbody", {}, order.map(row)),
        ),
      ),
      el("p", { class: "note hint" }, "Shaded: lengths seen in training. Bold: the best mean. A run that diverged counts as 0."),
    );
  }

  function settings(race) {
    const text = (value) => (value === null ? "–" : Array.isArray(value) ? value.join(", ") : String(value));
    return el(
      "details",
      { class: "settings" },
      el("summary", {}, "Command and settings"),
      el("pre", {}, race.command),
      el(
        "table",
        {},
        el(
          "tbody",
          {},
          Object.entries(race.settings).map(([key, value]) =>
            el("tr", {}, el("th", { scope: "row" }, key), el("td", {}, text(value))),
          ),
        ),
      ),
    );
  }

  function learned(race) {
    const scaled = visible(race).filter((one) => one.learned.length);
    if (!scaled.length) return null;
    const longest = Math.max(...scaled.flatMap((one) => one.learned.map(({ length }) => length)));
    const dots = scaled.map((one) => ({ name: name(one), color: color(one), learned: one.learned }));
    const charts = ["beta", "gamma", "scale"].map((what) => Scaling.draw(dots, what, longest)).filter(Boolean);
    return el(
      "div",
      {},
      el("p", { class: "lead" }, `What scaled heads learned: a dot per head and seed, the mean over tokens at length ${longest}.`),
      el("div", { class: "curve-row" }, charts),
    );
  }

  function race(one) {
    const heads = state.heads;
    const reading = el("div", {});
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
      ["support", "Keys with weight", true],
      ["top", "Largest weight", false],
    ].map(([what, title, log]) => Curves.draw({ ...shared, series: lines(one, (point) => point[what][heads]), title, log }));
    const charts = [large, ...attention];
    const runs = one.series.reduce((sum, series) => sum + series.seeds.length, 0);
    const section = el(
      "section",
      { class: "race", id: `race-${one.name}`, "aria-labelledby": `race-${one.name}-title` },
      el("h2", { id: `race-${one.name}-title` }, capital(one.task)),
      el("p", { class: "lead" }, one.about),
      el(
        "p",
        { class: "facts" },
        `Trained up to length ${one.train_length}; ${one.sequences} sequences at each length; ${runs} runs.`,
      ),
      el("div", { class: "curves" }, large.element, reading),
      el(
        "div",
        { class: "curve-row" },
        attention.map((chart) => chart.element),
      ),
      table(one),
      learned(one),
      settings(one),
    );
    const beyond = one.lengths.find((length) => length >= 2 * one.train_length) ?? one.lengths.at(-1);
    read(beyond);
    return section;
  }

  function showRaces() {
    // What was open stays open, and what was scrolled to stays in place.
    const open = [...document.querySelectorAll(".race details[open]")].map((node) => node.closest(".race").id);
    at("races").replaceChildren(...races.map(race));
    for (const id of open) at(id).querySelector("details").open = true;
  }

  function start() {
    at("title").textContent = report.title;
    at("made").textContent = `entformer ${report.entformer}, ${report.created}`;
    at("parts").replaceChildren(
      ...races.map((one) => el("a", { href: `#race-${one.name}` }, capital(one.task))),
      el("a", { href: "#setup" }, "Reading aids"),
    );
    const paint = () => {
      showSwitches();
      showRaces();
    };
    Theme.start(at("theme"), paint);
    paint();
  }

  start();
})();
