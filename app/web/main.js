// Wires the page together.
import { ask, currentSession, openSession, stop } from "./chat.js";
import { find } from "./dom.js";
import { showDocuments, watchDrops } from "./documents.js";
import { showSessions } from "./sessions.js";
import { watchTheme } from "./theme.js";

async function submit(event) {
  event.preventDefault();
  const box = find("message");
  const message = box.value.trim();
  if (!message || find("send").disabled) return;
  box.value = "";
  await ask(message);
  await showSessions();
  box.focus();
}

watchTheme();
watchDrops();
find("ask").addEventListener("submit", submit);
find("stop").addEventListener("click", stop);
find("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) find("ask").requestSubmit(), event.preventDefault();
});
// the address holds the session: the link to the question must not take its place
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  find("message").focus();
});
find("new-session").addEventListener("click", async () => {
  await openSession(null);
  await showSessions();
  find("message").focus();
});
await openSession(currentSession());
await Promise.all([showDocuments(), showSessions()]);
