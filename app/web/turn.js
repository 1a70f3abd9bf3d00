// One turn, rendered the same way while it streams and after a reload.
import { element, slice, textNodes } from "./dom.js";

let turnCount = 0;

export function addTurn(log, message) {
  log.querySelector(".empty")?.remove();
  const answer = element("div", { className: "answer running" });
  const more = element("div", { className: "sources" });
  const turn = element(
    "article",
    { className: "turn", id: `turn-${++turnCount}` },
    element("div", { className: "message" }, ...textNodes(message)),
    answer,
    more,
  );
  log.append(turn);
  turn.scrollIntoView({ block: "end" });
  return { turn, answer, more, text: "" };
}

export function addDelta(view, text) {
  view.text += text;
  view.answer.append(...textNodes(text));
}

export function finishTurn(view, answer) {
  const sources = listSources(answer);
  view.answer.className = answer.answerable ? "answer" : "answer unanswerable";
  view.answer.replaceChildren(...answerNodes(view, answer, sources));
  view.more.replaceChildren(
    ...[
      ...sources.map((source, index) => sourceNode(view, source, index)),
      allPassages(answer.passages),
      ...answer.notices.map((notice) => element("p", { className: "notice" }, notice)),
      element("p", { className: "cost" }, cost(answer)),
    ].filter(Boolean),
  );
}

export function stopTurn(view, why) {
  view.answer.classList.remove("running");
  view.more.append(element("p", { className: "notice" }, why));
}

function cost({ usage, timings }) {
  if (!usage.prompt_tokens) return "Nothing was found; the model was not asked.";
  const number = (value) => value.toLocaleString("en");
  const reused = `reused ${number(usage.cached_tokens)} of ${number(usage.prompt_tokens)} tokens`;
  return `${reused} · first token after ${(timings.first_token_ms / 1000).toFixed(2)} s`;
}

// Every cited passage once, with all its cited spans, in the order of the answer.
function listSources(answer) {
  const passages = new Map(answer.passages.map((passage) => [passage.passage_id, passage]));
  const sources = new Map();
  for (const citation of answer.citations) {
    for (const source of citation.sources) {
      const passage = passages.get(source.passage_id);
      if (!passage) continue;
      const known = sources.get(source.passage_id) ?? { passage, spans: [] };
      known.spans.push([source.start - passage.start, source.end - passage.start]);
      sources.set(source.passage_id, known);
    }
  }
  return [...sources.values()];
}

function answerNodes(view, answer, sources) {
  const nodes = [];
  let position = 0;
  for (const citation of answer.citations) {
    nodes.push(...textNodes(slice(answer.answer, position, citation.end)));
    for (const cited of new Set(citation.sources.map((source) => source.passage_id))) {
      const index = sources.findIndex((source) => source.passage.passage_id === cited);
      if (index >= 0) nodes.push(marker(view, index));
    }
    position = citation.end;
  }
  nodes.push(...textNodes(slice(answer.answer, position)));
  return nodes;
}

function marker(view, index) {
  const button = element("button", { type: "button", className: "marker", "aria-label": `Source ${index + 1}` }, `${index + 1}`);
  button.addEventListener("click", () => {
    const source = view.more.querySelectorAll(".source")[index];
    source.open = true;
    source.classList.add("shown");
    source.querySelector("summary").focus();
    source.scrollIntoView({ block: "nearest" });
  });
  return button;
}

function sourceNode(view, { passage, spans }, index) {
  const place = element("span", { className: "place" }, ...textNodes(`${index + 1}. ${passage.title}, page ${passage.page}`));
  const kept = passage.in_session ? element("span", { className: "in-session" }, " · already in the session") : null;
  return element(
    "details",
    { className: "source", open: index === 0 },
    element("summary", {}, place, kept),
    element("p", {}, ...highlighted(passage.text, spans)),
  );
}

// What the model was given, whether the answer cites it or not.
function allPassages(passages) {
  if (!passages.length) return null;
  const count = passages.length === 1 ? "1 passage was read" : `${passages.length} passages were read`;
  return element(
    "details",
    { className: "source read" },
    element("summary", {}, count),
    ...passages.map((passage) => element("p", {}, ...textNodes(`${passage.title}, page ${passage.page}\n${passage.text}`))),
  );
}

function highlighted(text, spans) {
  const nodes = [];
  let position = 0;
  for (const [start, end] of spans.toSorted((a, b) => a[0] - b[0])) {
    if (start < position) continue; // the same span, cited twice
    nodes.push(...textNodes(slice(text, position, start)), element("mark", {}, ...textNodes(slice(text, start, end))));
    position = end;
  }
  nodes.push(...textNodes(slice(text, position)));
  return nodes;
}
