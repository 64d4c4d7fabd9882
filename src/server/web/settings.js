"use strict";
// What a person sets: the system prompt and the parameters of each request. A field that is left
// empty is not sent, so that the server's default holds.

const kSettingsItem = "chorus.settings";  // of localStorage; the key is not among them

const kFields = [
  {name: "max_tokens", label: "Most tokens", min: 1, step: 1},
  {name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1},
  {name: "top_p", label: "Top p", min: 0, max: 1, step: 0.05},
  {name: "top_k", label: "Top k", min: -1, step: 1},
  {name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01},
  {name: "seed", label: "Seed", step: 1},
  {name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1},
  {name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1},
  {name: "repetition_penalty", label: "Repetition penalty", min: 0, step: 0.05},
  {name: "stop", label: "Stop at (a line each)", kind: "lines"},
  {name: "more", label: "Other parameters, as JSON", kind: "json",
    example: '{"min_tokens": 8, "logit_bias": {"17": -5}}'},
];

const settings = {system: "", parameters: {}, panels: null};

function fieldInput(name) {
  return document.getElementById("field-" + name);
}

function buildSettings() {
  const list = document.getElementById("fields");
  for (const field of kFields) {
    const id = "field-" + field.name;
    const common = {id, name: field.name, "aria-describedby": id + "-error", spellcheck: "false"};
    const input = field.kind
      ? make("textarea", {...common, rows: "2", placeholder: field.example})
      : make("input", {...common, type: "number", inputmode: "decimal", step: "any"});
    list.append(make("div", {class: field.kind ? "field wide" : "field"},
      make("label", {for: id, title: field.kind === "json" ? null : field.name}, field.label), input,
      make("p", {id: id + "-error", class: "error"})));
    input.value = settings.parameters[field.name] ?? "";
    input.addEventListener("input", () => {
      settings.parameters[field.name] = input.value;
      showFieldError(field.name, input.validity.badInput ? "not a number" : "");
      saveSettings();
    });
    if (!field.kind) input.addEventListener("keydown", (event) => stepField(event, field, input));
  }
}

// Arrow keys step by what is usual for the field, from its default on.
function stepField(event, field, input) {
  const sign = {ArrowUp: 1, ArrowDown: -1}[event.key];
  if (!sign) return;
  event.preventDefault();
  const from = Number(input.value === "" ? input.placeholder || 0 : input.value);
  const digits = (String(field.step).split(".")[1] ?? "").length;
  const to = Math.min(Math.max(from + sign * field.step, field.min ?? -Infinity),
    field.max ?? Infinity);
  input.value = String(Number(to.toFixed(digits)));
  input.dispatchEvent(new Event("input", {bubbles: true}));
}

function showFieldError(name, message) {
  const input = fieldInput(name);
  if (!input) return false;
  input.toggleAttribute("aria-invalid", message !== "");
  if (message) input.setAttribute("aria-invalid", "true");
  document.getElementById(input.id + "-error").textContent = message;
  return true;
}

// The parameters of a request. Throws an Error that says which field is at fault.
function readParameters() {
  const parameters = {};
  for (const field of kFields) {
    const input = fieldInput(field.name);
    const text = input.value;
    const fail = (message) => {
      showFieldError(field.name, message);
      throw Object.assign(new Error(field.label + ": " + message), {field: field.name});
    };
    if (input.validity.badInput) fail("not a number");
    showFieldError(field.name, "");
    if (text.trim() === "") continue;
    if (field.kind === "lines") {
      parameters.stop = text.split("\n").filter((line) => line !== "");
    } else if (field.kind === "json") {
      let more = null;
      try {
        more = JSON.parse(text);
      } catch (error) {
        fail("not JSON: " + error.message);
      }
      if (typeof more !== "object" || more === null || Array.isArray(more)) fail("not an object");
      Object.assign(parameters, more);
    } else {
      const value = Number(text);
      // What JSON or a double cannot say would be another number.
      const isExact = field.step !== 1 || Math.abs(value) <= Number.MAX_SAFE_INTEGER;
      if (!Number.isFinite(value) || !isExact) fail("too large");
      parameters[field.name] = value;
    }
  }
  return parameters;
}

// The server's defaults, where it tells of them, show in the empty fields.
function showDefaults(defaults) {
  for (const field of kFields) {
    const value = defaults?.[field.name];
    if (!field.kind) fieldInput(field.name).placeholder = typeof value === "number" ? value : "";
  }
}

function resetParameters() {
  settings.parameters = {};
  for (const field of kFields) {
    fieldInput(field.name).value = "";
    showFieldError(field.name, "");
  }
  saveSettings();
}

function saveSettings() {
  try {
    localStorage.setItem(kSettingsItem, JSON.stringify(settings));
  } catch { /* this browser keeps nothing */ }
}

function restoreSettings() {
  try {
    Object.assign(settings, JSON.parse(localStorage.getItem(kSettingsItem) ?? "{}"));
  } catch { /* written by something else, or nothing is kept */ }
}
