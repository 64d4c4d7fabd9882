"use strict";
// The conversation: a tree of messages, the branches through it, and the server's sessions that
// hold parts of it.
//
// A branch ends at its tip. An edit, another answer and a branch are all the same: a new branch
// from some message on. The server forks a session there, so nothing before it is computed again.

const kChatItem = "chorus.chat";  // of sessionStorage: a reload keeps the conversation
const kMostSessions = 6;          // that the page keeps open: others want some, too

// nodes: id -> {id, parent, role, text, state, finish, usage, error, note, time}
//   state of an answer: "waiting", "streaming", "done", "stopped", "failed"
//   usage: {prompt, cached, generated, firstMs, perSecond, way}
// branches: [{id, thread, tip, from, at, shared, used}]: `tip` "" is an empty one, those of one
//   conversation have one `thread`, `at` is the message where it left, `shared` are tokens that its
//   fork took over
// sessions: id -> {held: [[node, end]], tokens, used}: `end` counts tokens up to and with a
//   message, "" is a message that is not known here
const chat = {next: 1, nodes: {}, branches: [], current: "", sessions: {}};

// What the page does when something changes; "all" when more than the node has.
let onChatChange = () => {};

function newId(prefix) {
  return prefix + chat.next++;
}

// ---- The tree ----

function pathTo(id) {
  const path = [];
  for (let node = chat.nodes[id]; node; node = chat.nodes[node.parent]) path.unshift(node);
  return path;
}

function addNode(parent, role, text, state = "done") {
  const node = {id: newId("m"), parent, role, text, state, time: Date.now()};
  chat.nodes[node.id] = node;
  return node;
}

function currentBranch() {
  return chat.branches.find((branch) => branch.id === chat.current);
}

// A branch that ends at a message; `from` is the one that it leaves, null for a new conversation.
function addBranch(tip, from = null) {
  const branch = {id: newId("b"), thread: from?.thread ?? newId("t"), tip, from: from?.id ?? "",
    at: tip, shared: null, used: Date.now()};
  chat.branches.push(branch);
  chat.current = branch.id;
  return branch;
}

// The branches through a message, by the message that each has in its place: one of each, the one
// used last.
function siblings(node) {
  const found = new Map();
  const thread = currentBranch().thread;
  for (const branch of chat.branches) {
    const other = pathTo(branch.tip)
      .find((each) => each.parent === node.parent && each.role === node.role);
    if (!other || branch.thread !== thread) continue;
    const known = found.get(other.id);
    if (!known || known.used < branch.used) found.set(other.id, branch);
  }
  return [...found.entries()].map(([id, branch]) => ({id, branch}))
    .sort((a, b) => Number(a.id.slice(1)) - Number(b.id.slice(1)));
}

function selectBranch(branch) {
  chat.current = branch.id;
  branch.used = Date.now();
  onChatChange("all");
}

// Drops a branch with what no other one holds.
function removeBranch(branch) {
  turns.get(branch.tip)?.controller.abort();
  chat.branches = chat.branches.filter((each) => each !== branch);
  for (const each of chat.branches) if (each.from === branch.id) each.from = branch.from;
  const kept = new Set();
  for (const each of chat.branches) for (const node of pathTo(each.tip)) kept.add(node.id);
  for (const id of Object.keys(chat.nodes)) if (!kept.has(id)) delete chat.nodes[id];
  for (const [id, session] of Object.entries(chat.sessions)) {
    if (!kept.has(tipOf(session)) || isSpare(id)) closeSession(id);
  }
  if (chat.branches.length === 0) addBranch("");
  if (!currentBranch()) {
    chat.current = chat.branches.reduce((a, b) => (a.used > b.used ? a : b)).id;
  }
  onChatChange("all");
}

// Another session ends where this one does, and one branch needs one.
function isSpare(id) {
  const tip = tipOf(chat.sessions[id]);
  const others = Object.entries(chat.sessions)
    .filter(([other, session]) => other !== id && tipOf(session) === tip).length;
  return others > 0 && others + 1 > chat.branches.filter((branch) => branch.tip === tip).length;
}

// ---- Sessions ----

function tipOf(session) {
  return session.held.length > 0 ? session.held[session.held.length - 1][0] : "";
}

function closeSession(id) {
  delete chat.sessions[id];
  request(sessionPath(id), {method: "DELETE"}).catch(() => {});  // else it ends by being idle
}

// The server says what a session holds; the messages of `path` that it does are noted.
function noteHeld(id, facts, path) {
  const held = [];
  facts.messages.forEach((message, i) => {
    const node = path[i];
    const isKnown = node?.role === message.role && !held.some(([id]) => id === "");
    const isAnswer = i === path.length - 1 && message.role === "assistant";
    // What was generated and did not arrive belongs to the answer that was stopped.
    if (isKnown && isAnswer && message.content.startsWith(node.text)) node.text = message.content;
    held.push([isKnown && node.text === message.content ? node.id : "", message.end]);
  });
  chat.sessions[id] = {held, tokens: facts.tokens, used: Date.now()};
}

// The deepest message of `path` that a session holds and can be cut at: {id, count, end, isTip},
// where count messages of the path are held. null for none.
function findPlace(path) {
  for (let i = path.length - 1; i >= 0; --i) {
    let best = null;
    for (const [id, session] of Object.entries(chat.sessions)) {
      const at = session.held.findIndex(([node]) => node === path[i].id);
      if (at < 0 || isBusy(id)) continue;
      const end = session.held[at][1];
      const isTip = at === session.held.length - 1;
      // Messages that were sent together may end together: between them nothing can be cut.
      if (!isTip && session.held[at + 1][1] <= end) continue;
      if (!best || (isTip && !best.isTip)) best = {id, count: i + 1, end, isTip};
    }
    if (best) return best;
  }
  return null;
}

function isBusy(id) {
  return [...turns.values()].some((turn) => turn.session === id);
}

// Runs `action`, which makes a session. An own one that nobody has used for the longest time makes
// way where there are many, or where the server has no room. Throws what the action throws.
async function withRoom(keep, action) {
  for (;;) {
    const own = Object.entries(chat.sessions)
      .filter(([id]) => id !== keep && !isBusy(id)).sort((a, b) => a[1].used - b[1].used);
    if (own.length < kMostSessions) {
      try {
        return await action();
      } catch (error) {
        const isFull = error.status === 429 && error.param === "sessions";
        if (!isFull || own.length === 0) throw error;
      }
    }
    delete chat.sessions[own[0][0]];
    await request(sessionPath(own[0][0]), {method: "DELETE"}).catch(() => {});
  }
}

// A session that holds the path up to a place, as a fork. Returns its id.
async function fork(place, path) {
  const facts = await withRoom(place.id, () => requestJson(sessionPath(place.id, "fork"),
    {method: "POST", body: {at: place.end}}));
  noteHeld(facts.id, facts, path.slice(0, place.count));
  return facts.id;
}

// A session for the path: {id, count, way}, where it holds count messages. Way: "session" it was
// there, "fork", or "opened". A session that is gone is forgotten, and the next best is taken. It
// cannot be aborted: nobody would know of the session then.
async function takePlace(path) {
  await sessionsChecked;
  for (let place = findPlace(path); place; place = findPlace(path)) {
    if (place.isTip) return {id: place.id, count: place.count, way: "session"};
    try {
      return {id: await fork(place, path), count: place.count, way: "fork"};
    } catch (error) {
      if (error.status !== 404 && error.status !== 409) throw error;
      delete chat.sessions[place.id];
    }
  }
  const facts = await withRoom("", () => requestJson(kSessionsPath,
    {method: "POST", body: {}}));
  chat.sessions[facts.id] = {held: [], tokens: 0, used: Date.now()};
  return {id: facts.id, count: 0, way: "opened"};
}

// Whether a failure is one of sessions alone, so that the answer may come without.
function concernsSessions(error) {
  const isFull = error.status === 429 && error.param === "sessions";
  return isFull || [404, 405, 409, 501].includes(error.status);
}

// ---- Turns ----

// The answers that are on their way: node id -> {controller, session}
const turns = new Map();

function messageOf(node) {
  return {role: node.role, content: node.text};
}

// Generates the answer `node`, whose parent is there, or what comes behind it. Never throws.
async function runTurn(node, parameters, work = generate) {
  const turn = {controller: new AbortController(), session: ""};
  turns.set(node.id, turn);
  node.state = "waiting";
  delete node.error;
  onChatChange("all");
  try {
    await work(node, turn, parameters);
    node.state = "done";
  } catch (error) {
    node.state = error.name === "AbortError" ? "stopped" : "failed";
    if (node.state === "failed") node.error = describe(error);
    await settle(node, turn);
  } finally {
    turns.delete(node.id);
    if (turn.session && !chat.nodes[node.id]) closeSession(turn.session);
    onChatChange("all", node);
  }
}

function describe(error) {
  return {text: explain(error), status: error.status ?? -1, param: error.param ?? null,
    until: error.retryAfter ? Date.now() + error.retryAfter * 1000 : 0};
}

async function generate(node, turn, parameters) {
  const path = pathTo(node.parent);
  const signal = turn.controller.signal;
  const body = {...parameters, stream: true, stream_options: {include_usage: true}};
  for (let tries = 0; tries < 3; ++tries) {
    let place = null;
    try {
      place = await takePlace(path);
    } catch (error) {
      if (!concernsSessions(error)) throw error;
      return withoutSession(node, path, body, signal, error);
    }
    signal.throwIfAborted();
    turn.session = place.id;
    if (place.way === "fork") noteShared(node, chat.sessions[place.id].tokens);
    else if (place.way === "session" && isFirstOfFork(node)) place.way = "fork";
    const messages = path.slice(place.count).map(messageOf);
    if (messages.length > 0) body.messages = messages;
    try {
      await receive(node, sessionPath(place.id, "generate"), body, signal, place.way, (facts) => {
        noteHeld(place.id, facts, [...path, node]);
      });
      return;
    } catch (error) {
      if (error.status !== 404 && error.status !== 409) throw error;
      delete chat.sessions[place.id];  // closed for being idle, or at work elsewhere
      turn.session = "";
      delete body.messages;
    }
  }
  return withoutSession(node, path, body, signal,
    new ApiError(404, {message: "sessions end at once"}));
}

function branchOf(tip) {
  return chat.branches.find((branch) => branch.tip === tip.id);
}

function noteShared(node, tokens) {
  const branch = branchOf(node);
  if (branch) branch.shared ??= tokens;
}

// The first answer of a branch that was forked before anything was said.
function isFirstOfFork(node) {
  const branch = branchOf(node);
  const parent = chat.nodes[node.parent];
  return Boolean(branch) && branch.shared !== null &&
    [parent.id, parent.parent].includes(branch.at);
}

async function withoutSession(node, path, body, signal, error) {
  node.note = error.status === 429
    ? "The server has no room for another session: this answer came without one."
    : "This answer came without a session (" + error.message + ").";
  body.messages = path.map(messageOf);
  await receive(node, kChatPath, body, signal, "chat", () => {});
}

// Lets the model go on where its answer ended.
async function goOn(node, turn, parameters) {
  const path = pathTo(node.id);
  const place = placeBehind(node);
  if (!place) throw new ApiError(404, {message: "the session has ended"});
  turn.session = place.id;
  const body = {...parameters, stream: true, stream_options: {include_usage: true}};
  await receive(node, sessionPath(place.id, "generate"), body, turn.controller.signal, "session",
    (facts) => noteHeld(place.id, facts, path));
}

// The session that ends with this message, or null.
function placeBehind(node) {
  const path = pathTo(node.id);
  const place = findPlace(path);
  return place && place.isTip && place.count === path.length ? place : null;
}

// Receives one answer into `node`. onSession gets what the server says of its session at the end.
async function receive(node, path, body, signal, way, onSession) {
  const begun = performance.now();
  let first = 0;
  let last = 0;
  await stream(path, body, signal, (event) => {
    const choice = event.choices?.find((each) => (each.index ?? 0) === 0);
    const text = choice?.delta?.content ?? "";
    if (text) {
      last = performance.now();
      first ||= last;
      node.text += text;
      node.state = "streaming";
    }
    if (choice?.finish_reason) node.finish = choice.finish_reason;
    if (event.usage) node.usage = usageOf(event.usage, way, first - begun, last - first);
    if (event.session) onSession(event.session);
    onChatChange("node", node);
  });
}

function usageOf(usage, way, firstMs, restMs) {
  const generated = usage.completion_tokens;
  return {
    prompt: usage.prompt_tokens,
    cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
    generated,
    firstMs: firstMs > 0 ? Math.round(firstMs) : null,
    perSecond: generated > 1 && restMs > 50 ? (generated - 1) / restMs * 1000 : null,
    way,
  };
}

// An answer has ended early. Its session holds more or less of it: waits for its end and asks.
async function settle(node, turn) {
  if (!turn.session) return;
  const path = [...pathTo(node.parent), node];
  for (let wait = 40; wait < 3000; wait *= 2) {
    try {
      const facts = await requestJson(sessionPath(turn.session));
      if (!facts.is_busy) return noteHeld(turn.session, facts, path);
    } catch (error) {
      if (error.status === 404) delete chat.sessions[turn.session];
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
  delete chat.sessions[turn.session];
}

// ---- What a person does ----

// A message behind the tip, and its answer. `system` opens a conversation. An empty text asks for
// an answer to the tip.
function say(text, system, parameters) {
  const branch = currentBranch();
  const tip = chat.nodes[branch.tip];
  // An answer that never came is no message.
  let parent = tip?.role === "assistant" && !tip.text ? tip.parent : branch.tip;
  if (!parent && system) parent = systemNode(system).id;
  if (text) parent = addNode(parent, "user", text).id;
  const answer = addNode(parent, "assistant", "", "waiting");
  branch.tip = answer.id;
  branch.used = Date.now();
  return runTurn(answer, parameters);
}

function systemNode(text) {
  const known = Object.values(chat.nodes)
    .find((node) => node.role === "system" && !node.parent && node.text === text);
  return known ?? addNode("", "system", text);
}

// Another answer in place of `node`, on a branch of its own. One that never came is replaced.
function retry(node, parameters) {
  const branch = currentBranch();
  if (!node.text && branch.tip === node.id) {
    delete node.note;
    return runTurn(node, parameters);
  }
  addBranch(node.parent, branch);
  return say("", "", parameters);
}

// Another text in place of a person's message. The first of a conversation takes the system prompt
// along.
function edit(node, text, system, parameters) {
  const isFirst = pathTo(node.id).every((each) => each.id === node.id || each.role === "system");
  addBranch(isFirst ? "" : node.parent, currentBranch());
  return say(text, system, parameters);
}

// A branch from a message on, forked at once. Never throws.
async function branchAt(node) {
  const branch = addBranch(node.id, currentBranch());
  onChatChange("all");
  const path = pathTo(node.id);
  const place = findPlace(path);
  if (!place || place.count < path.length) return;  // computed with the next answer
  try {
    const id = await fork(place, path);
    branch.shared = chat.sessions[id].tokens;
  } catch (error) {
    if (error.status === 404) delete chat.sessions[place.id];
    else if (!concernsSessions(error)) branch.error = describe(error);
  }
  onChatChange("all");
}

// ---- Reloads ----

function saveChat() {
  try {
    sessionStorage.setItem(kChatItem, JSON.stringify(chat));
    return true;
  } catch {
    return false;  // more than the browser keeps
  }
}

function restoreChat() {
  try {
    Object.assign(chat, JSON.parse(sessionStorage.getItem(kChatItem) ?? "{}"));
  } catch { /* written by something else */ }
  if (chat.branches.length === 0) addBranch("");
  for (const node of Object.values(chat.nodes)) {
    if (node.state === "waiting" || node.state === "streaming") node.state = "stopped";
  }
}

// Resolves when it is known what the sessions hold; what is sent waits for it.
let sessionsChecked = Promise.resolve();

function checkSessions() {
  sessionsChecked = lookAtSessions();
  return sessionsChecked;
}

// Forgets sessions that are gone and asks what the others hold: the reload may have cut answers,
// which end on the server soon after.
async function lookAtSessions() {
  for (let wait = 100; wait < 2000 && Object.keys(chat.sessions).length > 0; wait *= 2) {
    const list = await requestJson(kSessionsPath).catch(() => null);
    if (!list) return;
    const facts = new Map(list.data.map((each) => [each.id, each]));
    for (const [id, session] of Object.entries(chat.sessions)) {
      const now = facts.get(id);
      if (!now) delete chat.sessions[id];
      else if (!now.is_busy && now.tokens !== session.tokens) await lookAtSession(id);
    }
    onChatChange("all");
    if (!list.data.some((each) => each.is_busy && chat.sessions[each.id])) return;
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

// The list tells of sizes alone.
async function lookAtSession(id) {
  const facts = await requestJson(sessionPath(id)).catch(() => null);
  if (facts && !facts.is_busy) adopt(id, facts);
}

// The path without the question that waits, with its answer, until the sessions are known.
function settledPath(tip) {
  const path = pathTo(tip);
  return turns.has(tip) && path[path.length - 1].text === "" ? path.slice(0, -2) : path;
}

// Finds the branch whose messages a session holds.
function adopt(id, facts) {
  for (const branch of chat.branches) {
    noteHeld(id, facts, settledPath(branch.tip));
    if (tipOf(chat.sessions[id])) return;
  }
  delete chat.sessions[id];
}
