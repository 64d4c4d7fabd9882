"use strict";
// The panel that shows the load of the server and its sessions.

function number(value, digits = 0) {
  return value === null || value === undefined ? "–"
    : value.toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
}

function showLoad(load) {
  $("server-load").hidden = load === null;
  $("server-note").hidden = load !== null;
  $("server-note").textContent = load === null ? "This server publishes no metrics." : "";
  $("load").textContent = load === null ? ""
    : number(load.generated, 1) + " tokens/s · " + number(load.running) + " running · " +
      number(load.waiting) + " waiting";
  if (load === null) return;
  $("rate").textContent = number(load.generated, 1);
  $("computed").textContent = load.computed === null ? ""
    : number(load.computed, 1) + " computed, prompts among them";
  const most = Math.max(...live.rates, 1);
  const bars = $("bars");
  while (bars.children.length < kNumRates) bars.append(make("i"));
  const rates = [...Array(kNumRates - live.rates.length).fill(0), ...live.rates];
  rates.forEach((rate, i) => {
    bars.children[i].style.height = (rate / most * 100).toFixed(1) + "%";
  });
  const facts = [["Running", number(load.running)], ["Waiting", number(load.waiting)],
    ["Sessions", number(load.sessions)],
    ["Prefix hits", load.queried > 0 ? number(load.hits / load.queried * 100) + " %" : "–"],
    ["Preempted", number(load.preemptions)], ["Evicted", number(load.evictions)]];
  $("numbers").replaceChildren(...facts.map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  const total = load.held + load.cached + load.free;
  $("kv").hidden = !(total > 0);
  $("kv-held").style.width = load.held / total * 100 + "%";
  $("kv-cached").style.width = load.cached / total * 100 + "%";
  $("kv-text").textContent = number(load.held) + " held by sessions, " + number(load.cached) +
    " kept for reuse, " + number(load.free) + " free";
}

function showSessions(sessions) {
  const list = $("session-list");
  const focused = list.contains(document.activeElement) ? document.activeElement.dataset.focus : "";
  list.replaceChildren(...sessions.map((session) => {
    const turn = [...turns].find(([, each]) => each.session === session.id);
    const tip = turn ? turn[0] : chat.sessions[session.id] ? tipOf(chat.sessions[session.id]) : "";
    const branch = chat.branches.find((each) => each.tip === tip) ??
      chat.branches.find((each) => tip && pathTo(each.tip).some((node) => node.id === tip));
    const label = branch ? branchLabel(branch)
      : chat.sessions[session.id] ? "A part of a branch" : "Not of this tab";
    const state = session.is_busy ? "at work" : "idle " + duration(session.idle_s);
    return make("li", {"data-session": session.id, class: session.is_busy ? "busy" : null},
      make("span", {class: "label"}, label),
      make("span", {class: "about"}, count(session.tokens, "token") + " · " +
        count(session.num_messages, "message") + " · " + state),
      make("button", {type: "button", class: "quiet remove", "aria-label": "Close session: " + label,
        "data-focus": session.id, disabled: session.is_busy,
        onclick: () => { closeSession(session.id); live.lookSoon(); onChatChange("all"); }}, "×"));
  }));
  $("server-sessions").hidden = false;
  $("session-note").textContent = sessions.length > 0 ? "" : "None. The first message opens one.";
  if (!focused) return;
  [...list.querySelectorAll("button")].find((each) => each.dataset.focus === focused)?.focus();
}

function duration(count) {
  if (count < 60) return count + " s";
  return count < 3600 ? Math.floor(count / 60) + " min" : Math.floor(count / 3600) + " h";
}
