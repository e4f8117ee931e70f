// Requests to the server. A newer request of the same name replaces an older one; an error has a message for the user.

const Api = (() => {
  "use strict";

  class RequestError extends Error {}

  const running = new Map(); // name -> AbortController

  async function read(answer) {
    const content = await answer.json().catch(() => null);
    if (answer.ok && content !== null) return content;
    const message = content && typeof content.detail === "string" ? content.detail : `the server returned ${answer.status}`;
    const sentence = `${message.charAt(0).toUpperCase()}${message.slice(1)}${/[.!?]$/.test(message) ? "" : "."}`;
    throw Object.assign(new RequestError(sentence), { status: answer.status });
  }

  async function fetched(address, options) {
    try {
      return await fetch(address, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new RequestError("The server does not respond. Is `entformer explore` still running? Your text is still here.");
    }
  }

  const model = async () => read(await fetched("api/model"));

  async function post(name, address, body) {
    stop(name);
    const control = new AbortController();
    running.set(name, control);
    const options = {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: control.signal,
    };
    try {
      return await read(await fetched(address, options));
    } finally {
      if (running.get(name) === control) running.delete(name);
    }
  }

  function stop(name) {
    const control = running.get(name);
    if (control) control.abort();
  }

  const translate = (body) => post("translate", "api/translate", body);
  const attention = (body) => post("attention", "api/attention", body);
  const oneHead = (body) => post("one head", "api/attention", body);
  const replaced = (error) => error.name === "AbortError";

  return { model, translate, attention, oneHead, replaced, RequestError };
})();
