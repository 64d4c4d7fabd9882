"use strict";
// Requests to the server that the page came from. Paths are relative, so that the page works behind
// a proxy that puts it below a path of its own.

const kKeyItem = "chorus.key";  // of sessionStorage alone: it goes with the tab
const kChatPath = "v1/chat/completions";
const kSessionsPath = "v1/sessions";

function apiKey() {
  return sessionStorage.getItem(kKeyItem) ?? "";
}

function setApiKey(key) {
  if (key) sessionStorage.setItem(kKeyItem, key);
  else sessionStorage.removeItem(kKeyItem);
}

function sessionPath(id, action = "") {
  return kSessionsPath + "/" + encodeURIComponent(id) + (action && "/" + action);
}

// Why a request came to nothing. status 0: the server was not reached, or its answer was cut short.
class ApiError extends Error {
  constructor(status, error = {}, retryAfter = null) {
    super(error.message || "the server answered with status " + status);
    this.status = status;
    this.param = error.param ?? null;
    this.code = error.code ?? null;
    this.retryAfter = retryAfter;  // seconds
  }
}

class LostError extends ApiError {
  constructor(message) {
    super(0, {message});
  }
}

// What a person is told.
function explain(error) {
  if (!(error instanceof ApiError)) return "Something went wrong in the page: " + error.message;
  const wait = error.retryAfter ? " Try again in " + seconds(error.retryAfter) + "." : "";
  const at = error.param ? error.param + ": " : "";
  switch (error.status) {
    case 0: return "The connection to the server was lost: " + error.message + ".";
    case 401: return "The server wants an API key that it knows.";
    case 404: return "Not found: " + error.message + ".";
    case 409: return "Another request is at work in this session.";
    case 413: return "This is more than the server takes in one request.";
    case 429: return "The server has no room at the moment (" + at + error.message + ")." + wait;
    case 503: return "The server takes no requests at the moment (" + error.message + ")." + wait;
    case 504: return "The deadline has passed (" + error.message + ").";
    default: return (error.status < 500 ? "The server refused this: " : "The server failed: ") +
      at + error.message + ".";
  }
}

function seconds(count) {
  return count === 1 ? "a second" : count + " seconds";
}

// Whole seconds from a retry-after header, which may also be a date.
function readWait(response) {
  const text = response.headers.get("retry-after");
  if (!text) return null;
  const count = /^\d+$/.test(text) ? Number(text) : (Date.parse(text) - Date.now()) / 1000;
  return Number.isFinite(count) && count > 0 ? Math.ceil(count) : null;
}

// A response whose status says that all is well; an ApiError otherwise. Aborting `signal` throws
// its AbortError.
async function request(path, {method = "GET", body, signal} = {}) {
  const headers = {};
  if (apiKey()) headers["authorization"] = "Bearer " + apiKey();
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store", credentials: "same-origin",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new LostError("no answer from " + location.host);
  }
  if (response.ok) return response;
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch { /* not from the API: the status has to do */ }
  throw new ApiError(response.status, typeof error === "string" ? {message: error} : error,
    readWait(response));
}

async function requestJson(path, options) {
  const response = await request(path, options);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new LostError("the answer was cut short");
  }
}

// ---- Streams ----

// Cuts server-sent events out of pieces of text. Calls onData with the data of each.
class EventReader {
  constructor(onData) {
    this.onData = onData;
    this.rest = "";
    this.data = [];
  }
  push(text) {
    this.rest += text;
    // A carriage return at the end may be the first half of a line end.
    const lines = this.rest.split(/\r\n|\n|\r(?=[^])/);
    this.rest = lines.pop();
    for (const line of lines) this.line(line);
  }
  line(line) {
    if (line === "") {
      if (this.data.length > 0) this.onData(this.data.join("\n"));
      this.data = [];
    } else if (line.startsWith("data:")) {
      this.data.push(line.slice(line[5] === " " ? 6 : 5));
    }
  }
}

// An error that comes in a stream has no status of its own.
const kStatusOfType = {invalid_request_error: 400, rate_limit_error: 429, unavailable_error: 503,
  timeout_error: 504};

// Sends a request that streams; calls onEvent with the JSON of each event. Returns when the stream
// has said that it is done; throws an ApiError where it tells of one or ends before.
async function stream(path, body, signal, onEvent) {
  const response = await request(path, {method: "POST", body, signal});
  let isDone = false;
  let failure = null;
  const reader = new EventReader((data) => {
    if (data === "[DONE]") {
      isDone = true;
      return;
    }
    const event = JSON.parse(data);
    if (event.error) failure ??= new ApiError(kStatusOfType[event.error.type] ?? 500, event.error);
    else onEvent(event);
  });
  const decoder = new TextDecoder();
  const source = response.body.getReader();
  try {
    for (;;) {
      const {done, value} = await source.read();
      if (done) break;
      reader.push(decoder.decode(value, {stream: true}));
    }
  } catch (error) {
    source.cancel().catch(() => {});
    if (error.name === "AbortError") throw error;
    throw failure ?? new LostError("the answer was cut short");
  }
  if (failure) throw failure;
  if (!isDone) throw new LostError("the answer was cut short");
}
