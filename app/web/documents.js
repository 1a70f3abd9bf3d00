// Uploads with progress, and the list of documents with their states.
import { ApiError, get, headers, remove } from "./api.js";
import { element, find, textNodes } from "./dom.js";

const POLL_MS = 700;

export function watchDrops() {
  const drop = find("drop");
  const stop = (event) => event.preventDefault();
  // a file dropped beside the box must not replace the page
  for (const kind of ["dragover", "drop"]) addEventListener(kind, stop);
  drop.addEventListener("dragover", () => drop.classList.add("over"));
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    drop.classList.remove("over");
    uploadAll(event.dataTransfer.files);
  });
  find("pick").addEventListener("click", () => find("files").click());
  find("files").addEventListener("change", (event) => {
    uploadAll([...event.target.files]);
    event.target.value = "";
  });
}

export async function showDocuments() {
  const { documents } = await get("/documents");
  find("documents").replaceChildren(...documents.map(row));
  if (documents.some(({ status }) => status === "queued" || status === "processing")) setTimeout(showDocuments, POLL_MS);
}

async function uploadAll(files) {
  for (const file of files) {
    const bar = element("progress", { max: 1, value: 0, "aria-label": `Upload of ${file.name}` });
    const line = element("li", {}, element("span", { className: "name" }, ...textNodes(file.name)), bar);
    find("documents").prepend(line);
    say(`Uploading ${file.name}…`);
    try {
      await upload(file, (share) => (bar.value = share));
      say(`${file.name} is uploaded.`);
    } catch (error) {
      say(`${file.name}: ${error.message}`, true);
    }
    line.remove();
    await showDocuments();
  }
}

// fetch reports no progress of an upload; XMLHttpRequest does
function upload(file, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", "/documents");
    for (const [name, value] of Object.entries(headers())) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", (event) => onProgress(event.loaded / event.total));
    request.addEventListener("error", () => reject(new ApiError("The service cannot be reached, or the file is too large.")));
    request.addEventListener("load", () => {
      if (request.status === 202) resolve();
      else reject(new ApiError(messageOf(request)));
    });
    const form = new FormData();
    form.append("file", file);
    request.send(form);
  });
}

function messageOf(request) {
  try {
    return JSON.parse(request.responseText).error.message;
  } catch {
    return `The service answered with status ${request.status}.`;
  }
}

function row(item) {
  const forget = element("button", { type: "button", className: "quiet", "aria-label": `Delete ${item.filename}` }, "✕");
  forget.addEventListener("click", async () => {
    await remove(`/documents/${item.document_id}`);
    await showDocuments();
  });
  return element(
    "li",
    { "data-status": item.status },
    element("span", { className: "name", title: item.filename }, ...textNodes(item.filename)),
    forget,
    ...details(item),
  );
}

function details(item) {
  const line = (text, kind) => element("span", { className: `detail ${kind}` }, ...textNodes(text));
  if (item.status === "failed") return [line(item.error, "error")];
  if (item.status === "ready") {
    const pages = item.pages === 1 ? "1 page" : `${item.pages} pages`;
    return [line(`${pages}, ready`, ""), ...item.warnings.map((warning) => line(warning, "warning"))];
  }
  const label = `Processing of ${item.filename}`;
  return [line(item.status, ""), element("progress", { max: 1, value: item.progress, "aria-label": label })];
}

function say(text, isError = false) {
  find("upload-status").textContent = text;
  find("upload-status").classList.toggle("error", isError);
}
