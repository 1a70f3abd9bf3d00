// The list of sessions.
import { get, remove } from "./api.js";
import { currentSession, openSession } from "./chat.js";
import { element, find, textNodes } from "./dom.js";

export async function showSessions() {
  const { sessions } = await get("/sessions");
  find("sessions").replaceChildren(...sessions.map(row));
}

function row(session) {
  const current = session.session_id === currentSession();
  const name = element(
    "button",
    { type: "button", className: "name", "aria-current": String(current) },
    ...textNodes(session.title || "Untitled"),
  );
  name.addEventListener("click", async () => {
    await openSession(session.session_id);
    await showSessions();
  });
  const forget = element("button", { type: "button", className: "quiet", "aria-label": `Delete session ${session.title}` }, "✕");
  forget.addEventListener("click", async () => {
    await remove(`/sessions/${session.session_id}`);
    if (current) await openSession(null);
    await showSessions();
  });
  return element("li", {}, name, forget);
}
