"use strict";
// The page: what is where, the composer, the panels, keys and what is said aloud.

const $ = (id) => document.getElementById(id);
const isWide = window.matchMedia("(min-width: 1000px)");
let modelName = "";
let contextLimit = 0;

// ---- Showing ----

let nodesToShow = new Set();
let showsAll = false;
let frame = 0;

onChatChange = (what, node) => {
  if (what === "all") showsAll = true;
  if (node) nodesToShow.add(node);
  frame ||= requestAnimationFrame(show);
};

function show() {
  frame = 0;
  const nodes = nodesToShow;
  nodesToShow = new Set();
  if (showsAll) {
    showsAll = false;
    showMessages();
    showBranches();
    showComposer();
  } else {
    nodes.forEach(showMessage);
  }
  for (const node of nodes) {
    speakAnswer(node);
    if (!turns.has(node.id)) ended(node);
  }
  if (isFollowing) scrollToEnd();
  saveSoon();
}

// What an answer that has ended, well or not, is a reason for.
function ended(node) {
  if (node.error?.status === 401) askForKey();
  if (node.error?.param && showFieldError(node.error.param, node.error.text)) openPanel("settings");
  if (node.error) countDown(node);
  live.lookSoon();
}

function countDown(node) {
  const left = secondsLeft(node.error);
  showMessage(node);
  if (left > 0) setTimeout(() => countDown(node), 500);
}

let saveTimer = 0;
let couldSave = true;

function saveSoon() {
  saveTimer ||= setTimeout(saveNow, 400);
}

function saveNow() {
  clearTimeout(saveTimer);
  saveTimer = 0;
  const could = saveChat();
  if (!could && couldSave) speak("This chat is too long to survive a reload.");
  couldSave = could;
}

// ---- Scrolling ----

let isFollowing = true;

function scrollToEnd() {
  $("scroll").scrollTop = $("scroll").scrollHeight;
}

function watchScroll() {
  const area = $("scroll");
  area.addEventListener("scroll", () => {
    isFollowing = area.scrollHeight - area.scrollTop - area.clientHeight < 60;
    $("to-end").hidden = isFollowing;
  }, {passive: true});
  new ResizeObserver(() => {
    if (isFollowing) scrollToEnd();
  }).observe(area);
  $("to-end").addEventListener("click", () => {
    isFollowing = true;
    scrollToEnd();
    $("input").focus();
  });
}

// ---- Speaking ----

// Says something to those who listen to the page.
function speak(text) {
  const spoken = $("spoken");
  spoken.append(make("p", {}, text));
  while (spoken.children.length > 20) spoken.firstElementChild.remove();
}

const spokenTo = new Map();  // node id -> characters that were said

// Whole sentences of the answer as it comes, and how it ended.
function speakAnswer(node) {
  if (!pathTo(currentBranch().tip).includes(node)) return;
  const from = spokenTo.get(node.id) ?? 0;
  const isRunning = turns.has(node.id);
  const rest = node.text.slice(from);
  const sentences = isRunning ? /^[^]*(?:[.!?:]\s|\n)/.exec(rest)?.[0] ?? "" : rest;
  if (sentences.trim()) speak(sentences);
  spokenTo.set(node.id, from + sentences.length);
  if (isRunning) return;
  spokenTo.delete(node.id);
  if (node.state === "stopped") speak("Stopped.");
  if (node.state === "done" && node.usage) {
    speak("Answer complete: " + count(node.usage.generated, "token") + ", " +
      (node.usage.prompt - node.usage.cached) + " of " + count(node.usage.prompt, "prompt token") +
      " computed.");
  }
}

// ---- Acting ----

// Runs what sends something with the parameters as they are set. What is wrong with them is shown
// where they are.
function act(work) {
  let parameters;
  try {
    parameters = readParameters();
  } catch (error) {
    openPanel("settings");
    fieldInput(error.field)?.focus();
    speak(error.message);
    return false;
  }
  if (modelName && parameters.model === undefined) parameters.model = modelName;
  isFollowing = true;
  work(parameters);
  $("input").focus();
  return true;
}

function send() {
  const input = $("input");
  const text = input.value.trim();
  if (currentTurn() || (!text && !waitsForAnswer())) return;
  if (!act((parameters) => say(text, settings.system.trim(), parameters))) return;
  input.value = "";
  fitHeight(input);
}

function currentTurn() {
  return turns.get(currentBranch().tip);
}

// A branch may end with a message that nobody has answered.
function waitsForAnswer() {
  return chat.nodes[currentBranch().tip]?.role === "user";
}

function halt() {
  currentTurn()?.controller.abort();
}

function branchHere(node) {
  branchAt(node);
  isFollowing = true;
  $("input").focus();
  speak("A new branch. Write what comes next.");
}

function newChat() {
  const empty = chat.branches.find((branch) => !branch.tip);
  if (empty) selectBranch(empty);
  else addBranch("");
  onChatChange("all");
  closeOverlay();
  $("input").focus();
}

// ---- Composer ----

function showComposer() {
  const isRunning = currentTurn() !== undefined;
  $("halt").hidden = !isRunning;
  $("send").hidden = isRunning;
  $("send").textContent = waitsForAnswer() && !$("input").value.trim() ? "Answer" : "Send";
  const branch = currentBranch();
  const place = branch.tip ? findPlace(pathTo(branch.tip)) : null;
  const held = place ? place.end : 0;
  const parts = [];
  if (held > 0) {
    const limit = contextLimit ? " of " + contextLimit.toLocaleString("en") : "";
    parts.push(held.toLocaleString("en") + limit + " tokens of context");
  }
  if (branch.at && branch.at === branch.tip) {
    parts.push(branch.shared === null ? "a new branch begins here"
      : "a new branch begins here: " + count(branch.shared, "token") + " shared, 0 computed");
  }
  $("context").textContent = parts.join(" · ");
}

function buildComposer() {
  const input = $("input");
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  input.addEventListener("input", () => {
    fitHeight(input);
    showComposer();
  });
  $("halt").addEventListener("click", () => {
    halt();
    input.focus();
  });
  $("new-chat").addEventListener("click", newChat);
}

// ---- Branches ----

function snippet(text) {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length > 60 ? line.slice(0, 59) + "…" : line;
}

// What tells a branch from the one that it left.
function branchLabel(branch) {
  const path = pathTo(branch.tip).filter((node) => node.role !== "system");
  if (path.length === 0) return "New chat";
  const at = branch.from ? path.findIndex((node) => node.id === branch.at) + 1 : 0;
  const own = path.slice(at).find((node) => node.text);
  if (!own) return "Behind: " + snippet(path[path.length - 1].text || "a question");
  return snippet(own.text);
}

function branchDepth(branch) {
  let depth = 0;
  for (let each = branch; each.from; ++depth) {
    each = chat.branches.find((other) => other.id === each.from);
    if (!each) break;
  }
  return depth;
}

// Each branch comes behind the one that it left.
function orderedBranches() {
  const ordered = [];
  const add = (from) => {
    for (const branch of chat.branches) {
      const isRoot = !chat.branches.some((other) => other.id === branch.from);
      if (from === null ? !isRoot : branch.from !== from) continue;
      ordered.push(branch);
      add(branch.id);
    }
  };
  add(null);
  return ordered;
}

function showBranches() {
  const list = $("branch-list");
  $("branch-count").textContent = chat.branches.length > 1 ? String(chat.branches.length) : "";
  const focused = list.contains(document.activeElement) ? document.activeElement.dataset.focus : "";
  list.replaceChildren(...orderedBranches().map((branch) => {
    const path = pathTo(branch.tip).filter((node) => node.role !== "system");
    const isCurrent = branch.id === chat.current;
    const about = [count(path.length, "message")];
    if (branch.shared !== null) about.push(count(branch.shared, "token") + " shared");
    if (turns.has(branch.tip)) about.push("answering");
    const label = branchLabel(branch);
    return make("li", {class: "depth-" + Math.min(branchDepth(branch), 4)},
      make("button", {type: "button", class: "branch", "aria-current": isCurrent ? "true" : null,
        "data-focus": branch.id, onclick: () => { selectBranch(branch); closeOverlay(); }},
        make("span", {class: "label"}, label), make("span", {class: "about"}, about.join(" · "))),
      make("button", {type: "button", class: "quiet remove", "aria-label": "Delete: " + label,
        "data-focus": branch.id + "-remove", onclick: () => removeBranch(branch)}, "×"));
  }));
  if (focused) {
    const again = [...list.querySelectorAll("button")]
      .find((each) => each.dataset.focus === focused);
    (again ?? $("new-chat")).focus();
  }
}

// ---- Panels ----

const kRightPanels = ["settings", "server"];

function openPanels() {
  return ["branches", ...kRightPanels].filter((name) => !$(name).hidden);
}

function setPanel(name, isOpen) {
  $(name).hidden = !isOpen;
  const button = document.querySelector('[data-panel="' + name + '"]');
  button.setAttribute("aria-expanded", String(isOpen));
}

// On narrow screens a panel lies over the chat, one at a time; on wide ones beside it.
function openPanel(name) {
  for (const other of openPanels()) {
    const sharesPlace = kRightPanels.includes(other) && kRightPanels.includes(name);
    if (other !== name && (!isWide.matches || sharesPlace)) setPanel(other, false);
  }
  setPanel(name, true);
  afterPanels();
  if (!isWide.matches) $(name).focus();
  if (name === "server") live.lookSoon();
}

function closePanel(name) {
  const hadFocus = $(name).contains(document.activeElement) || !isWide.matches;
  setPanel(name, false);
  afterPanels();
  if (hadFocus) document.querySelector('[data-panel="' + name + '"]').focus();
}

function afterPanels() {
  const isCovered = !isWide.matches && openPanels().length > 0;
  document.querySelector("main").inert = isCovered;
  document.body.classList.toggle("covered", isCovered);
  if (!isWide.matches) return;
  settings.panels = openPanels();
  saveSettings();
}

// Whether there was one to be closed.
function closeOverlay() {
  const open = openPanels();
  if (isWide.matches || open.length === 0) return false;
  closePanel(open[0]);
  return true;
}

function buildPanels() {
  for (const button of document.querySelectorAll("[data-panel]")) {
    const name = button.dataset.panel;
    button.addEventListener("click", () => ($(name).hidden ? openPanel(name) : closePanel(name)));
    $(name).querySelector(".close").addEventListener("click", () => closePanel(name));
  }
  const arrange = () => {
    const open = isWide.matches ? settings.panels ?? ["branches", "server"] : [];
    for (const name of ["branches", ...kRightPanels]) setPanel(name, open.includes(name));
    const isCovered = !isWide.matches && openPanels().length > 0;
    document.querySelector("main").inert = isCovered;
    document.body.classList.toggle("covered", isCovered);
  };
  isWide.addEventListener("change", arrange);
  arrange();
}

// ---- Keys ----

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || $("key-dialog").open) return;
  if (closeOverlay()) return;
  halt();
});

function askForKey() {
  if ($("key-dialog").open) return;
  $("dialog-key").value = "";
  $("key-title").textContent = apiKey() ? "The server does not know this API key"
    : "This server wants an API key";
  $("key-dialog").showModal();
}

function useKey(key) {
  setApiKey(key.trim());
  $("key").value = "";
  showKey();
  learnServer();
}

function showKey() {
  $("key").placeholder = apiKey() ? "one is in use" : "none";
  $("key-hint").textContent = "Kept by this tab until it is closed." +
    (apiKey() ? " An empty one forgets it." : "");
}

function buildKeys() {
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey($("key").value);
  });
  $("key-dialog-form").addEventListener("submit", (event) => {
    event.preventDefault();
    $("key-dialog").close();
    useKey($("dialog-key").value);
    $("input").focus();
  });
  $("dialog-key-cancel").addEventListener("click", () => $("key-dialog").close());
  showKey();
}

// ---- The server ----

function showBanner(text) {
  const banner = $("banner");
  if (banner.textContent !== text) banner.textContent = text;
  banner.hidden = text === "";
}

let isLearning = false;
let needsKey = false;  // the person was asked for one

// The model and the defaults of its parameters.
async function learnServer() {
  if (isLearning) return;
  isLearning = true;
  checkSessions();
  try {
    const models = await requestJson("v1/models");
    modelName = models.data[0]?.id ?? "";
    contextLimit = models.data[0]?.max_model_len ?? 0;
    $("model").textContent = modelName;
    $("model").title = modelName;
    document.title = modelName ? modelName + " · Chorus" : "Chorus";
    const props = await requestJson("props").catch(() => null);
    showDefaults(props?.default_generation_settings?.params);
    showBanner("");
    live.lookSoon();
  } catch (error) {
    needsKey = error.status === 401;
    if (needsKey) askForKey();
    else showBanner(explain(error));
  }
  isLearning = false;
  onChatChange("all");
}

function onLook({load, sessions, error}) {
  if (error) {
    if (error.status !== 401) showBanner(explain(error));
    $("load").textContent = "";
    for (const id of ["server-load", "server-sessions"]) $(id).hidden = true;
    $("server-note").textContent = error.status === 401
      ? "Nothing to see without an API key that the server knows." : explain(error);
    $("server-note").hidden = false;
    return;
  }
  if (modelName || needsKey) showBanner("");
  else learnServer();  // it was not there when the page was opened
  showLoad(load);
  if (sessions) showSessions(sessions);
}

const live = new LiveView(() => !$("server").hidden, onLook);

// ---- Begin ----

restoreSettings();
restoreChat();
buildSettings();
$("system").value = settings.system;
$("system").addEventListener("input", () => {
  settings.system = $("system").value;
  saveSettings();
});
$("parameters").addEventListener("submit", (event) => event.preventDefault());
$("reset").addEventListener("click", resetParameters);
buildPanels();
buildKeys();
buildComposer();
watchScroll();
window.addEventListener("pagehide", saveNow);
onChatChange("all");
learnServer();
live.lookSoon();
$("input").focus();
