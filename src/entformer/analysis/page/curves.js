// Curves against length: a mean per series, a band over its seeds, and a line that follows the pointer to read values.
// Lengths lie on a logarithmic axis. The arrow keys move the reading line too.

const Curves = (() => {
  "use strict";

  const { el, svg } = Dom;
  const WIDTH = { large: 760, small: 400 };
  const HEIGHT = { large: 330, small: 240 };

  const compact = (value) => {
    if (value >= 1000) return `${Number((value / 1024).toFixed(1))}k`;
    return value >= 10 ? value.toFixed(0) : String(Number(value.toPrecision(2)));
  };

  function range(values, { percent, log }) {
    if (percent) return [0, 100];
    const high = Math.max(...values, log ? 2 : 0.01);
    return log ? [0, Math.ceil(Math.log2(high))] : [0, Math.max(high * 1.05, 0.1)];
  }

  // {series: [{name, color, hollow, dash, points: [{length, mean, low, high}]}], lengths, trained, title, percent, log, large, onRead}
  function draw(options) {
    const { series, lengths, trained, title, percent, log, onRead } = options;
    const size = options.large ? "large" : "small";
    const all = series.flatMap(({ points }) => points.map(({ high }) => high));
    const ys = range(all, options);
    const place = (value) => (log ? Math.log2(Math.max(value, 1)) : value);
    const ends = [Math.log2(Math.min(...lengths)), Math.log2(Math.max(...lengths))];
    if (ends[0] === ends[1]) ends.splice(0, 2, ends[0] - 1, ends[1] + 1);
    const yTicks = log ? Charts.ticks(ys[0], ys[1], 6).filter(Number.isInteger) : undefined;
    const every = Math.ceil(lengths.length / (options.large ? 10 : 6));
    const chart = Charts.frame({
      width: WIDTH[size],
      height: HEIGHT[size],
      x: ends,
      y: ys,
      xTicks: lengths.filter((_, index) => index % every === 0).map(Math.log2),
      xForm: (value) => compact(Math.round(2 ** value)),
      yTicks,
      yForm: percent ? (value) => `${value}%` : log ? (value) => compact(2 ** value) : (value) => Number(value.toFixed(2)),
      xTitle: "length",
      margin: { left: 44 },
      label: `${title} against length, ${series.map(({ name }) => name).join("; ") || "no series"}`,
    });
    const across = (length) => chart.x(Math.log2(length));
    const up = (value) => chart.y(place(value));
    chart.plot.append(chart.vertical(across(trained), { class: "trained" }));
    for (const { color, points } of series) {
      const upper = points.map(({ length, high }) => [across(length), up(high)]);
      const lower = points.map(({ length, low }) => [across(length), up(low)]).reverse();
      if (points.length) chart.plot.append(svg("path", { class: "band", fill: color, d: `${Charts.path([...upper, ...lower])}Z` }));
    }
    for (const { name, color, hollow, dash, points } of series) {
      const way = points.map(({ length, mean }) => [across(length), up(mean)]);
      chart.plot.append(
        svg("path", { class: "line", "data-series": name, stroke: color, "stroke-dasharray": dash, d: Charts.path(way) }),
        ...way.map(([x, y]) => dot(x, y, options.large ? 3.2 : 2.6, color, hollow)),
      );
    }
    const reading = chart.vertical(0, { class: "reading", visibility: "hidden" });
    const cover = svg("rect", { class: "cover", x: 0, y: 0, width: chart.width, height: chart.height });
    chart.svg.append(reading, cover);
    chart.svg.setAttribute("tabindex", 0);
    let at = null;

    function mark(length) {
      at = length;
      reading.setAttribute("visibility", length === null ? "hidden" : "visible");
      if (length === null) return;
      reading.setAttribute("x1", across(length));
      reading.setAttribute("x2", across(length));
    }

    chart.svg.addEventListener("pointermove", (event) => {
      const box = chart.svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * chart.width;
      const nearest = lengths.reduce((best, one) => (Math.abs(across(one) - x) < Math.abs(across(best) - x) ? one : best));
      if (nearest !== at) onRead(nearest);
    });
    chart.svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = lengths[Math.min(Math.max(lengths.indexOf(at) + step, 0), lengths.length - 1)];
      onRead(next);
    });
    return { element: el("figure.curve", el("figcaption", el("h3", title)), chart.svg), mark };
  }

  // Hollow dots tell methods apart where there are more of them than colors.
  const dot = (cx, cy, r, color, hollow) =>
    svg("circle", { cx, cy, r, fill: hollow ? "var(--surface)" : color, stroke: color, "stroke-width": hollow ? 1.4 : 0 });

  // A piece of a line as it is drawn.
  const sample = (color, dash, hollow = false) =>
    svg(
      "svg",
      { viewBox: "0 0 26 10", width: 26, height: 10, "aria-hidden": "true" },
      svg("line", { x1: 1, x2: 25, y1: 5, y2: 5, stroke: color, "stroke-width": 2.4, "stroke-dasharray": dash }),
      hollow && dot(13, 5, 3.4, color, true),
    );

  return { draw, sample };
})();
