// Formats numbers; what is not zero never looks like zero. The same rules as text/numbers.py, value for value.

const Numbers = (() => {
  "use strict";

  const UNKNOWN = "–";
  const MORE_DIGITS = 3; // decimals that may be added so that a value does not look like a value it is not

  const missing = (value) => value === null || value === undefined || Number.isNaN(value);

  // Two significant digits of a value near zero: 0.004, 2.3e-5.
  function small(value) {
    const [mantissa, exponent] = value.toExponential(1).split("e");
    if (Number(exponent) >= -3) return Number(value.toExponential(1)).toFixed(4).replace(/0+$/, "");
    return `${mantissa}e${Number(exponent)}`;
  }

  const misleads = (text, value, exact) => exact.some((special) => Number(text) === special && special !== value);

  // A fixed number of decimals; it never reads as one of `exact` unless it is equal to it.
  function fixed(value, digits = 2, exact = [0]) {
    if (missing(value)) return UNKNOWN;
    if (value === 0) return "0";
    let text = value.toFixed(digits);
    if (Number(text) === 0 && exact.includes(0)) return small(value);
    for (let more = 1; more <= MORE_DIGITS; more++) {
      if (!misleads(text, value, exact)) return text;
      text = value.toFixed(digits + more);
    }
    if (!misleads(text, value, exact)) return text;
    const decimals = digits + MORE_DIGITS - 1;
    const near = Number(text);
    return value < near ? `>${(near - 10 ** -decimals).toFixed(decimals)}` : `<${(near + 10 ** -decimals).toFixed(decimals)}`;
  }

  // 0% and 100% are exact; one decimal below 10%.
  function percent(fraction) {
    if (missing(fraction)) return UNKNOWN;
    const value = fraction * 100;
    const digits = value !== 0 && Math.abs(value) < 10 ? 1 : 0;
    return fraction === 1 ? "100%" : `${fixed(value, digits, [0, 100])}%`;
  }

  // 1.00 and 2.00 mean softmax and sparsemax exactly.
  const alpha = (value) => fixed(value, 2, [1, 2]);

  // The same where there is little space: <2.00 instead of 1.99996.
  function shortAlpha(value) {
    const near = Number(value.toFixed(2));
    if (value === near || (near !== 1 && near !== 2)) return alpha(value);
    return `${value < near ? "<" : ">"}${near.toFixed(2)}`;
  }

  // Four decimals; only exactly 0 and exactly 1 read as such.
  const weight = (value) => (value === 0 ? "exactly 0" : fixed(value, 4, [0, 1]));

  // A weight in four characters: 0.43, 5e-3, >.99.
  function short(value) {
    if (value !== 0 && Number(value.toFixed(2)) === 0) return value.toExponential(0);
    return value < 1 && value >= 0.995 ? ">.99" : fixed(value);
  }

  // As the record of a measure tells (analysis/measures.py).
  const measure = ({ format, digits }, value) => (format === "number" ? fixed(value, digits) : { alpha, percent }[format](value));

  const count = (value) => (missing(value) ? UNKNOWN : value.toLocaleString("en"));

  return { missing, fixed, percent, alpha, shortAlpha, weight, short, measure, count };
})();
