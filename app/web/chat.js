// The conversation: ask, stream, stop. The session's id lives in the address, so a reload comes back to it.
import { get, stream } from "./api.js";
import { element, find } from "./dom.js";
import { addDelta, addTurn, finishTurn, stopTurn } from "./turn.js";

let running = null;

export const currentSession = () => (location.hash.startsWith("#ses_") ? location.hash.slice(1) : null);

export function setSession(sessionId) {
  history.replaceState(null, "", sessionId ? `#${sessionId}` : location.pathname);
}

export async function openSession(sessionId) {
  running?.abort();
  setSession(sessionId);
  const log = find("turns");
  log.replaceChildren();
  status("");
  if (!sessionId) {
    log.append(element("p", { className: "empty" }, "Upload a document on the left, then ask about it."));
    return;
  }
  try {
    const session = await get(`/sessions/${encodeURIComponent(sessionId)}`);
    for (const turn of session.turns) finishTurn(addTurn(log, turn.message), turn);
  } catch (error) {
    setSession(null);
    status(error.message, true);
  }
}

export async function ask(message) {
  const session = currentSession();
  const view = addTurn(find("turns"), message);
  running = new AbortController();
  busy(true);
  status("Looking for passages…");
  try {
    await follow(view, stream("/chat", { message, stream: true, ...(session && { session_id: session }) }, running.signal));
    status("");
  } catch (error) {
    const stopped = error.name === "AbortError";
    stopTurn(view, stopped ? "Stopped. This turn was not kept." : error.message);
    status(stopped ? "Stopped." : error.message, !stopped);
  } finally {
    running = null;
    busy(false);
  }
}

async function follow(view, events) {
  let done = false;
  for await (const { name, data } of events) {
    if (name === "passages") status("Reading…");
    if (name === "delta") {
      status("Answering…");
      addDelta(view, data.text);
    }
    if (name === "done") {
      done = true;
      setSession(data.session_id);
      finishTurn(view, data);
    }
  }
  if (!done) throw new Error("The connection broke before the answer was complete.");
}

export const stop = () => running?.abort();

function busy(is) {
  find("stop").hidden = !is;
  find("send").disabled = is;
  find("turns").setAttribute("aria-busy", String(is));
}

function status(text, isError = false) {
  const line = find("chat-status");
  if (line.textContent !== text) line.textContent = text;
  line.classList.toggle("error", isError);
}
