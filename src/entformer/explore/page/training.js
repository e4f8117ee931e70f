// Training as it goes on: losses, validation BLEU, density and alphas, read again every few seconds until the last step.

(() => {
  "use strict";

  const { el, svg, at, put } = Dom;
  const WAIT = 3000; // milliseconds
  const QUIET = 600; // seconds without an entry: training has stopped

  // curves: [[name, points [[step, value]]]]
  function chart(title, curves, form, low) {
    const known = curves.filter(([, points]) => points.length);
    if (!known.length) return null;
    const all = known.flatMap(([, points]) => points);
    const [steps, values] = [all.map(([step]) => step), all.map(([, value]) => value)];
    const frame = Charts.frame({
      x: [0, Math.max(...steps, 1)],
      y: [low ?? Math.min(...values) * 0.98, Math.max(...values) * 1.02 || 1],
      xTicks: Charts.ticks(0, Math.max(...steps, 1), 4),
      xForm: (value) => value.toLocaleString("en"),
      yForm: form,
      xTitle: "training step",
      label: `${title}: ${known.map(([name, points]) => `${name} ${form(points[points.length - 1][1])}`).join(", ")}`,
    });
    known.forEach(([name, points], index) => {
      const way = points.map(([step, value]) => [frame.x(step), frame.y(value)]);
      const own = { class: "line", "data-series": name, d: Charts.path(way), stroke: Colors.run(index), "stroke-dasharray": Colors.dash(index) };
      frame.plot.append(svg("path", own), ...way.slice(-1).map(([x, y]) => Charts.shape(index, x, y, Colors.run(index))));
    });
    const last = known.map(([name, points]) => `${name} ${form(points[points.length - 1][1])}`).join(", ");
    return el("div", el("h4", title), frame.svg, el("p.note", last));
  }

  function show(found) {
    at("training").hidden = !found.loss.length;
    const goesOn = found.steps !== null && found.step < found.steps && (found.seconds_ago ?? QUIET) < QUIET;
    const position = `Step ${Numbers.count(found.step)}${found.steps ? ` of ${Numbers.count(found.steps)}` : ""}`;
    at("training-state").textContent = goesOn ? `${position}; this part follows the training.` : `${position}.`;
    const number = (digits) => (value) => Numbers.fixed(value, digits);
    put(
      "training-charts",
      chart("Loss", [["training", found.loss], ["validation", found.validation_loss]], number(2)),
      chart("Validation BLEU", [["BLEU", found.bleu]], number(1), 0),
      chart("Density", [["mean of all heads", found.density]], Numbers.percent, 0),
    );
    const alphas = AlphaPaths.small(found, () => {});
    put("training-alphas", goesOn && alphas); // afterward "How α was learned" shows them
    return goesOn;
  }

  async function follow() {
    const answer = await fetch("api/training").catch(() => null);
    if (!answer || !answer.ok) return; // without a run directory, or the server is gone
    if (show(await answer.json())) setTimeout(follow, WAIT);
  }

  follow();
})();
