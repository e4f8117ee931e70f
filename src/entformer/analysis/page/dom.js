// Building the page without markup. Every text becomes a text node, so no token, title or setting can turn into HTML.

const Dom = (() => {
  "use strict";

  const SVG = "http://www.w3.org/2000/svg";

  function fill(node, properties, children) {
    for (const [name, value] of Object.entries(properties)) {
      if (value === null || value === undefined || (value === false && !name.startsWith("aria-"))) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name === "style") for (const [key, setting] of Object.entries(value)) node.style.setProperty(key, setting);
      else node.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : String(value));
    }
    node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
    return node;
  }

  // (name, properties, children): the name may have classes, as "p.note"; properties may be omitted.
  const builder = (create) => (name, ...content) => {
    const [tag, ...classes] = name.split(".");
    const properties = content[0]?.constructor === Object ? content.shift() : {};
    return fill(create(tag), classes.length ? { class: classes.join(" "), ...properties } : properties, content);
  };
  const el = builder((tag) => document.createElement(tag));
  const button = (text, onclick, properties) => el("button", { type: "button", onclick, ...properties }, text);
  const svg = builder((tag) => document.createElementNS(SVG, tag));

  const at = (id) => document.getElementById(id);
  const put = (id, ...nodes) => at(id).replaceChildren(...nodes.filter(Boolean));

  // A part of the page that scrolls sideways by itself.
  const scroll = (label, ...content) =>
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, content);

  // titles: contents or cells; rows: {cells: contents or cells, and attributes of the row}, the first cell is the row's title.
  function table({ titles, rows, caption, ...properties }) {
    const cell = (name, scope, content) =>
      content instanceof HTMLTableCellElement ? content : el(name, { scope }, content);
    return el(
      "table",
      properties,
      caption && el("caption.unseen", caption),
      titles && el("thead", el("tr", titles.map((title) => cell("th", "col", title)))),
      el(
        "tbody",
        rows.map(({ cells, ...own }) =>
          el("tr", own, cells.map((content, index) => (index ? cell("td", null, content) : cell("th", "row", content)))),
        ),
      ),
    );
  }

  // The arrow keys move the focus inside a group of buttons in which only one is reached by Tab.
  function roving(container, selector, columnsOf) {
    container.addEventListener("keydown", (event) => {
      const items = [...container.querySelectorAll(selector)];
      const at = items.indexOf(event.target.closest(selector));
      if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
      const columns = columnsOf ? columnsOf(items) : 1;
      const moves = {
        ArrowRight: 1,
        ArrowLeft: -1,
        ArrowDown: columns,
        ArrowUp: -columns,
        Home: -at,
        End: items.length - 1 - at,
      };
      const target = items[at + moves[event.key]];
      if (!(event.key in moves)) return;
      event.preventDefault();
      if (target) focusOnly(items, target);
    });
  }

  function focusOnly(items, target) {
    for (const item of items) item.tabIndex = item === target ? 0 : -1;
    target.focus();
  }

  // A group of tokens: work(index) when the pointer, the focus or a tap comes to one.
  function onChoice(container, selector, work) {
    const choose = (event) => {
      const item = event.target.closest(selector);
      if (item) work(Number(item.dataset.index));
    };
    for (const name of ["pointerover", "focusin", "click"]) container.addEventListener(name, choose);
    roving(container, selector);
  }

  // Runs jobs in slices, so that the page stays responsive; a later call with the same owner stops an earlier one.
  const running = new Map();

  function inSlices(owner, jobs, milliseconds = 10) {
    const ticket = Symbol(owner);
    running.set(owner, ticket);
    let next = 0;
    const slice = () => {
      if (running.get(owner) !== ticket) return;
      const end = performance.now() + milliseconds;
      while (next < jobs.length && performance.now() < end) jobs[next++]();
      if (next < jobs.length) requestAnimationFrame(slice);
      else running.delete(owner);
    };
    slice();
  }

  // Runs at most once per frame.
  function perFrame(work) {
    let waiting = false;
    return () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        work();
      });
    };
  }

  // Scrolls a box of its own, never the page.
  function keepInView(box, node) {
    if (!node || box.scrollHeight <= box.clientHeight) return;
    const above = node.offsetTop - box.offsetTop;
    if (above < box.scrollTop) box.scrollTop = above;
    else if (above + node.offsetHeight > box.scrollTop + box.clientHeight)
      box.scrollTop = above + node.offsetHeight - box.clientHeight;
  }

  // The address holds the state of a page, so that a reload or a bookmark restores it.
  function remember(state) {
    try {
      history.replaceState(null, "", `#${new URLSearchParams(state)}`);
    } catch {
      // Browsers limit how often the address may change, and a page in a frame may not change it at all.
    }
  }

  // Changed alphas in the address, as "cross.1.2:1.5,encoder.0.0:2".
  function alphasIn(chosen) {
    return (chosen.get("alphas") || "")
      .split(",")
      .map((part) => [part.split(":")[0], Number(part.split(":")[1])])
      .filter(([, alpha]) => Number.isFinite(alpha));
  }

  function reveal(node) {
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    node.scrollIntoView({ behavior: calm ? "auto" : "smooth", block: "start" });
  }

  return { el, button, svg, at, put, scroll, table, roving, onChoice, inSlices, perFrame, keepInView, remember, alphasIn, reveal };
})();
