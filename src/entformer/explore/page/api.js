// Asking the server. A newer request of the same kind replaces an older one; a problem is one sentence a person can read.

const Api = (() => {
  "use strict";

  class Problem extends Error {}

  const running = new Map(); // kind -> AbortController

  async function read(answer) {
    const content = await answer.json().catch(() => null);
    if (answer.ok && content !== null) return content;
    const said = content && typeof content.detail === "string" ? content.detail : `the server answered ${answer.status}`;
    throw new Problem(`${said.charAt(0).toUpperCase()}${said.slice(1)}${/[.!?]$/.test(said) ? "" : "."}`);
  }

  async function fetched(address, options) {
    try {
      return await fetch(address, options);
    } catch (problem) {
      if (problem.name === "AbortError") throw problem;
      throw new Problem("The server does not answer. Is `entformer explore` still running? What you typed stays here.");
    }
  }

  const model = async () => read(await fetched("api/model"));

  async function post(kind, address, body) {
    stop(kind);
    const control = new AbortController();
    running.set(kind, control);
    const options = {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: control.signal,
    };
    try {
      return await read(await fetched(address, options));
    } finally {
      if (running.get(kind) === control) running.delete(kind);
    }
  }

  function stop(kind) {
    const control = running.get(kind);
    if (control) control.abort();
  }

  const translate = (body) => post("translate", "api/translate", body);
  const attention = (body) => post("attention", "api/attention", body);
  const oneHead = (body) => post("one head", "api/attention", body);
  const replaced = (problem) => problem.name === "AbortError";

  return { model, translate, attention, oneHead, replaced, Problem };
})();
