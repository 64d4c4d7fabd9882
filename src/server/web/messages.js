"use strict";
// The messages of the current branch, as elements.

const messageElements = new Map();  // node id -> its element

const kRoleNames = {system: "System prompt", user: "You", assistant: "Answer"};

// Shows the path of the current branch. Elements of messages that stay are kept.
function showMessages() {
  const list = document.getElementById("messages");
  const path = pathTo(currentBranch().tip);
  const wanted = new Set(path.map((node) => node.id));
  for (const [id, element] of messageElements) {
    if (wanted.has(id)) continue;
    element.remove();
    messageElements.delete(id);
  }
  path.forEach((node, i) => {
    let element = messageElements.get(node.id);
    if (!element) {
      element = buildMessage(node);
      messageElements.set(node.id, element);
    }
    if (list.children[i] !== element) list.insertBefore(element, list.children[i] ?? null);
    showMessage(node);
  });
  document.getElementById("welcome").hidden = path.length > 0;
}

function buildMessage(node) {
  const body = make("div", {class: "body"});
  const element = make("article", {class: "message " + node.role, "data-node": node.id,
    "aria-label": kRoleNames[node.role]}, body, make("div", {class: "facts"}),
    make("div", {class: "actions", role: "group", "aria-label": "What to do with this message"}));
  if (node.role !== "system") return element;
  element.replaceChildren(make("details", {}, make("summary", {}, "System prompt"), body));
  return element;
}

// Shows what has changed of one message.
function showMessage(node) {
  const element = messageElements.get(node.id);
  if (!element) return;
  const body = element.querySelector(".body");
  if (node.role === "assistant") showText(body, node.text);
  else if (body.textContent !== node.text) body.textContent = node.text;
  if (node.role === "system") return;
  element.classList.toggle("running", turns.has(node.id));
  element.setAttribute("aria-busy", String(turns.has(node.id)));
  showFacts(node, element.querySelector(".facts"));
  showActions(node, element.querySelector(".actions"));
}

// ---- Facts ----

function count(number, what) {
  return number.toLocaleString("en") + " " + what + (number === 1 ? "" : "s");
}

const kWays = {fork: "forked", opened: "new session", session: "same session", chat: "no session"};

// Replaces what `holder` shows if its description has changed. The focus stays with the button of
// the same title.
function replaceIfChanged(holder, key, elements) {
  if (holder.shownKey === key) return;
  holder.shownKey = key;
  const title = holder.contains(document.activeElement) ? document.activeElement.title : "";
  holder.replaceChildren(...elements());
  if (title) [...holder.querySelectorAll("button")].find((each) => each.title === title)?.focus();
}

// Seconds that the server wants to be left alone after an error.
function secondsLeft(error) {
  return Math.max(Math.ceil(((error?.until ?? 0) - Date.now()) / 1000), 0);
}

function showFacts(node, holder) {
  const key = JSON.stringify([node.state, node.usage, node.note, node.error, node.finish]);
  replaceIfChanged(holder, key, () => {
    const parts = [];
    if (node.state === "waiting" && turns.has(node.id)) {
      parts.push(make("p", {class: "note waiting"}, "Waiting for the first token"));
    }
    if (node.state === "stopped") parts.push(make("p", {class: "note"}, "Stopped."));
    if (node.finish === "length" && node.state === "done") {
      parts.push(make("p", {class: "note"}, "Cut at the most tokens that were allowed."));
    }
    if (node.note) parts.push(make("p", {class: "note"}, node.note));
    if (node.error) parts.push(make("p", {class: "note error", role: "alert"}, node.error.text));
    if (node.usage) parts.push(usageElement(node.usage));
    return parts;
  });
}

// How much of the prompt was there, and what had to be computed.
function usageElement(usage) {
  const computed = usage.prompt - usage.cached;
  const share = usage.prompt > 0 ? usage.cached / usage.prompt : 0;
  const bar = make("i");
  bar.style.width = (share * 100).toFixed(1) + "%";
  const speed = usage.perSecond === null ? "" : " at " + usage.perSecond.toFixed(1) + "/s";
  return make("p", {class: "usage", "data-cached": usage.cached, "data-computed": computed,
    "data-way": usage.way},
    make("span", {class: "meter small", "aria-hidden": "true"}, bar),
    make("span", {}, "Prompt: ", make("b", {}, usage.cached.toLocaleString("en")), " of " +
      usage.prompt.toLocaleString("en") + " reused, "),
    make("span", {}, make("b", {}, computed.toLocaleString("en")), " computed"),
    make("span", {class: "way"}, kWays[usage.way]),
    make("span", {}, count(usage.generated, "token") + speed),
    usage.firstMs === null ? null
      : make("span", {}, "first in " + usage.firstMs.toLocaleString("en") + " ms"));
}

// ---- Actions ----

function action(label, title, run) {
  return make("button", {type: "button", class: "quiet", title, onclick: run}, label);
}

function showActions(node, holder) {
  const isRunning = turns.has(node.id);
  const isTip = currentBranch().tip === node.id;
  const others = siblings(node);
  const goesOn = node.finish === "length" && isTip && placeBehind(node) !== null;
  const left = secondsLeft(node.error);
  const key = JSON.stringify([isRunning, isTip, goesOn, left, node.state, node.text !== "",
    others.map((other) => [other.id, other.branch.id])]);
  replaceIfChanged(holder, key, () => {
    if (isRunning) return [];
    const parts = [];
    if (others.length > 1) parts.push(switchElement(node, others));
    if (node.text) {
      const copy = action("Copy", "Copy the text", () => copyText(node.text, copy));
      parts.push(copy);
    }
    if (node.role === "user") {
      parts.push(action("Edit", "Edit it, on a new branch", () => startEdit(node)));
    }
    if (node.role === "assistant") {
      const again = node.error ? "Try again" : "Retry";
      parts.push(action(left > 0 ? again + " (" + left + " s)" : again, "Another answer",
        () => act((parameters) => retry(node, parameters))));
    }
    if (goesOn) {
      parts.push(action("Continue", "Go on behind the end",
        () => act((parameters) => runTurn(node, parameters, goOn))));
    }
    if (node.text) {
      parts.push(action("Branch", "Begin another branch behind this message",
        () => branchHere(node)));
    }
    return parts;
  });
}

// "‹ 2 of 3 ›" between the branches that differ here.
function switchElement(node, others) {
  const at = others.findIndex((other) => other.id === node.id);
  const step = (by, label, sign) => {
    const other = others[at + by];
    return make("button", {type: "button", class: "quiet", "aria-label": label, disabled: !other,
      onclick: () => { selectBranch(other.branch); focusSwitch(other.id, label); }}, sign);
  };
  return make("span", {class: "switch", role: "group", "aria-label": "Other branches here"},
    step(-1, "Previous branch", "‹"), make("span", {}, (at + 1) + " of " + others.length),
    step(1, "Next branch", "›"));
}

// The focus stays on the switch, though the message is another one.
function focusSwitch(id, label) {
  const holder = messageElements.get(id)?.querySelector(".switch");
  const button = holder?.querySelector('[aria-label="' + label + '"]');
  (button && !button.disabled ? button : holder?.querySelector("button:not(:disabled)"))?.focus();
}

// ---- Editing ----

function startEdit(node) {
  const element = messageElements.get(node.id);
  if (element.querySelector("form")) return;
  const area = make("textarea", {"aria-label": "Edited message", rows: "3"});
  area.value = node.text;
  const form = make("form", {class: "edit"}, area, make("div", {class: "row end"},
    make("button", {type: "button", class: "quiet", onclick: () => endEdit(node)}, "Cancel"),
    make("button", {type: "submit", class: "strong"}, "Send on a new branch")));
  const submit = () => {
    const text = area.value.trim();
    if (!text) return;
    act((parameters) => edit(node, text, settings.system.trim(), parameters));
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      endEdit(node);
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  });
  area.addEventListener("input", () => fitHeight(area));
  element.classList.add("editing");
  element.append(form);
  fitHeight(area);
  area.focus();
}

function endEdit(node) {
  const element = messageElements.get(node.id);
  element?.querySelector("form")?.remove();
  element?.classList.remove("editing");
  element?.querySelector('.actions button[title^="Edit"]')?.focus();
}

// A text area as high as its text, as far as the style allows.
function fitHeight(area) {
  area.style.height = "auto";
  area.style.height = area.scrollHeight + area.offsetHeight - area.clientHeight + "px";
}
