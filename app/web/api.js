// The HTTP contract. Every failure becomes an ApiError with the service's own words.
import { find } from "./dom.js";

const KEY = "snaprag-key";

export class ApiError extends Error {}

export function headers(more = {}) {
  const key = sessionStorage.getItem(KEY);
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

let asking = null; // several requests may be refused at once; the person is asked once

function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = find("key-dialog");
    dialog.addEventListener("close", resolve, { once: true });
    dialog.showModal();
  }).then(() => {
    sessionStorage.setItem(KEY, find("key").value);
    find("key").value = "";
    asking = null;
  });
  return asking;
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The service answered with status ${response.status}.`;
  }
}

export async function send(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(options.headers) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The service cannot be reached.");
  }
  if (response.status === 401) {
    await askForKey();
    return send(path, options);
  }
  if (!response.ok) throw new ApiError(await reason(response));
  return response;
}

export const get = async (path) => (await send(path)).json();
export const remove = (path) => send(path, { method: "DELETE" });

export async function* stream(path, body, signal) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
  const response = await send(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (buffer + value).split("\n\n");
    buffer = blocks.pop();
    for (const block of blocks) {
      const event = parse(block);
      if (event?.name === "error") throw new ApiError(event.data.error.message);
      if (event) yield event;
    }
  }
}

// One block of a text/event-stream; null for a comment.
function parse(block) {
  const lines = block.split("\n");
  const of = (field) => lines.filter((line) => line.startsWith(field)).map((line) => line.slice(field.length).trimStart());
  const data = of("data:").join("\n");
  return data ? { name: of("event:")[0], data: JSON.parse(data) } : null;
}
