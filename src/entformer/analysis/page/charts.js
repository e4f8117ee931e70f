// Small charts in SVG. A frame has axes and two scales; marks are appended to its plot. Every chart has a text label for
// screen readers.

const Charts = (() => {
  "use strict";

  const { el, svg } = Dom;

  const scale =
    ([from, to], [start, end]) =>
    (value) =>
      start + ((value - from) / (to - from || 1)) * (end - start);

  // At most `most` round numbers from `from` to `to`.
  function ticks(from, to, most = 5) {
    const rough = (to - from) / Math.max(most, 1) || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const found = [];
    for (let at = Math.ceil(from / step - 1e-9); at * step <= to + step * 1e-9; at++) found.push(at * step || 0); // never -0
    return found;
  }

  // {width, height, x: [from, to], y: [from, to], xTicks, yTicks: values, xForm, yForm, xTitle, yTitle, label}
  function frame(options) {
    const { width = 340, height = 210, x: xs, y: ys, label } = options;
    const margin = { left: 38, right: 10, top: 12, bottom: 32, ...options.margin };
    const x = scale(xs, [margin.left, width - margin.right]);
    const y = scale(ys, [height - margin.bottom, margin.top]);
    const xForm = options.xForm || String;
    const yForm = options.yForm || String;
    const xTicks = options.xTicks || ticks(...xs);
    const yTicks = options.yTicks || ticks(...ys, 4);
    const plot = svg("g");
    const image = svg(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": label },
      yTicks.map((value) => [
        svg("line", { class: "rule", x1: margin.left, x2: width - margin.right, y1: y(value), y2: y(value) }),
        svg("text", { class: "tick", x: margin.left - 6, y: y(value), dy: "0.32em", "text-anchor": "end" }, yForm(value)),
      ]),
      xTicks.map((value) =>
        svg("text", { class: "tick", x: x(value), y: height - margin.bottom + 15, "text-anchor": "middle" }, xForm(value)),
      ),
      options.xTitle &&
        svg(
          "text",
          { class: "axis", x: (margin.left + width - margin.right) / 2, y: height - 3, "text-anchor": "middle" },
          options.xTitle,
        ),
      plot,
    );
    const vertical = (at, properties) =>
      svg("line", { x1: at, x2: at, y1: margin.top, y2: height - margin.bottom, ...properties });
    return { svg: image, plot, x, y, vertical, margin, width, height };
  }

  const percent = (value) => `${Math.round(value * 100)}%`;
  const integers = (from, to) => Array.from({ length: to - from + 1 }, (_, index) => from + index);

  // Counts over equal bins from x[0] to x[1]; heights are fractions of all, up to `top`. A higher bar is cut and labeled.
  function histogram(counts, { x, top, color, label, xForm, markForm, mark }) {
    const total = counts.reduce((sum, count) => sum + count, 0) || 1;
    const chart = frame({ height: 150, x, y: [0, top], xForm, yForm: percent, yTicks: ticks(0, top, 3), label });
    const size = (x[1] - x[0]) / counts.length;
    counts.forEach((count, bin) => {
      const start = x[0] + bin * size;
      const high = chart.y(Math.min(count / total, top));
      if (count / total > top * 1.001) {
        const right = 2 * bin < counts.length; // the side with space for a text
        const beside = right ? chart.x(start + size) + 4 : chart.x(start) - 4;
        const position = { class: "mean-text", x: beside, y: high + 26, "text-anchor": right ? "start" : "end" };
        chart.plot.append(svg("text", position, `${Numbers.percent(count / total)} ↑`));
      }
      chart.plot.append(
        svg(
          "rect",
          {
            x: chart.x(start) + 0.5,
            width: chart.x(x[0] + size) - chart.x(x[0]) - 1,
            y: high,
            height: Math.max(chart.y(0) - high, 0),
            fill: color,
          },
          svg("title", `${start.toFixed(2)} to ${(start + size).toFixed(2)}: ${Numbers.percent(count / total)}`),
        ),
      );
    });
    const [at, left] = [chart.x(mark), mark > (x[0] + x[1]) / 2];
    const bin = Math.min(Math.floor((mark - x[0]) / size), counts.length - 1);
    const covered = counts[bin] / total > 0.8 * top; // the bar reaches up to the text: it stands beside the bar
    const edge = covered ? chart.x(x[0] + (left ? bin : bin + 1) * size) : at;
    const position = { x: edge + (left ? -5 : 5), y: chart.margin.top + 6, "text-anchor": left ? "end" : "start" };
    chart.plot.append(
      chart.vertical(at, { class: "mean" }),
      svg("text.mean-text", position, `mean ${markForm(mark)}`),
    );
    return chart.svg;
  }

  function counts(values, [from, to], bins) {
    const found = new Array(bins).fill(0);
    for (const value of values) found[Math.min(Math.max(Math.floor(((value - from) / (to - from)) * bins), 0), bins - 1)]++;
    return found;
  }

  const path = (points) => points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

  const SHAPES = [
    (x, y) => ["circle", { cx: x, cy: y, r: 4 }],
    (x, y) => ["rect", { x: x - 3.6, y: y - 3.6, width: 7.2, height: 7.2 }],
    (x, y) => ["path", { d: `M${x} ${y - 4.8}L${x + 4.6} ${y + 3.6}H${x - 4.6}Z` }],
    (x, y) => ["path", { d: `M${x} ${y - 5}L${x + 5} ${y}L${x} ${y + 5}L${x - 5} ${y}Z` }],
  ];
  function shape(index, x, y, fill, properties, title) {
    const [name, geometry] = SHAPES[index % SHAPES.length](x, y);
    return svg(name, { ...geometry, fill, ...properties }, title && svg("title", title));
  }

  // The color, dash and shape of each run.
  function runLegend(runs) {
    return el(
      "div.flow.legend.runs",
      runs.map((run, index) =>
        el(
          "span",
          svg(
            "svg",
            { viewBox: "0 0 34 12", width: 34, height: 12, "aria-hidden": "true" },
            svg("path", { d: "M1 6H33", stroke: Colors.run(index), "stroke-width": 2, "stroke-dasharray": Colors.dash(index) }),
            shape(index, 17, 6, Colors.run(index)),
          ),
          run.name,
        ),
      ),
    );
  }

  const figure = (title, text, ...content) =>
    el("figure.chart-block", el("figcaption", el("h3", title), el("p", text)), content);

  return { frame, histogram, counts, path, shape, ticks, percent, integers, runLegend, figure };
})();
